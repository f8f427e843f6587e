"""The table of claims: verdicts from stored trials, and one line for what cannot be judged."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHODS = {"neighbours": {"method": "tfidf-nn"}, "popular": {"method": "popular"}, "again": {"method": "popular"}}


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location("claims", BENCHMARKS / "claims.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "claims", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with suites, and a store with the trials of one of them."""
    root = tmp_path_factory.mktemp("claims")
    for name, seeds in (("run", [0, 1]), ("other", [0]), ("later", [0, 1])):
        suite = {"name": name, "datasets": ["catalog-200"], "budget": {"epochs": 1 + (name == "later")}}
        suite |= {"methods": METHODS, "seeds": seeds, "metrics": ["P@1"]}
        (root / f"{name}.yaml").write_text(yaml.safe_dump(suite))
    Bench(root).run(root / "run.yaml", data=root)
    return root


def outcome(claims: ModuleType, root: Path, suite: Any = "run", **claim: Any) -> Any:
    trials = claims.Trials(root / "results", root, root)
    default = {"claim": "a claim", "metric": "P@1", "suite": suite, "better": "neighbours", "than": "popular"}
    return claims.measured(default | claim, trials)


def test_a_claim_holds_or_not_or_is_not_decided(claims: ModuleType, root: Path) -> None:
    found = outcome(claims, root)
    assert (found.verdict, found.seeds, found.queries) == ("holds", 2, 120)
    assert outcome(claims, root, better="popular", than="neighbours").verdict == "does not hold"
    same = outcome(claims, root, better="popular", than="again")
    assert same.verdict == "not decided"
    assert "+0.00 (+0.00 to +0.00)" in same.text
    assert claims.verdict(same, 0.006) == "not decided: sees 0.0 points, the paper's difference is 0.6"


def test_the_leaderboard_gets_states_and_keys_of_the_trials(claims: ModuleType, root: Path, tmp_path: Path) -> None:
    claim = {"claim": "A method's claim", "metric": "P@1", "suite": "run", "better": "neighbours", "than": "popular"}
    claim["paper"] = {"text": "a paper"}
    path = tmp_path / "claims.yaml"
    missing = claims.measured({**claim, "suite": "later"}, claims.Trials(root / "results", root, root))
    for outcome_now, state in ((missing, "not tried"), (outcome(claims, root), "reproduced"), (missing, "reproduced")):
        claims.update(path, [claim], {claim["claim"]: outcome_now})
        (written,) = claims.read_claims(path)
        assert (written.id, written.state) == ("a-methods-claim", state)
    assert len(written.trials.better_keys) == len(written.trials.than_keys) == 2
    assert float(written.trials.interval[0]) > 0


def test_the_power_is_told_before_a_suite_runs(claims: ModuleType, root: Path) -> None:
    """120 queries: 0.5 / sqrt(120) times the quantiles of 97.5 and 80 %."""
    found = outcome(claims, root, suite="later")
    assert (found.text, found.verdict) == ("not run", "not run")
    assert claims.verdict(found, None) == "not run: will see 12.8 points"


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"better": "neighbors"}, r"unknown trial 'neighbors' \(did you mean 'neighbours'"),
        ({"metric": "P@3"}, r"trial neighbours \(\w+\): unknown metric 'P@3'"),
        ({"suite": ["run", "other"]}, r"a claim: neighbours has the seeds \[0, 1\], popular \[0\]"),
    ],
)
def test_what_cannot_be_judged_is_one_line(claims: ModuleType, root: Path, claim: dict[str, Any], message: str) -> None:
    with pytest.raises(XMCBenchError, match=message) as raised:
        outcome(claims, root, **claim)
    assert "\n" not in str(raised.value)


def test_trials_of_older_code_count_and_are_marked(
    claims: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = registry().method("popular").thing
    version = method.info.version
    monkeypatch.setattr(method, "info", replace(method.info, version=version + 1))
    found = outcome(claims, root)
    assert found.verdict == "holds"
    assert found.text.endswith(f"(method {version}, now {version + 1})")


def test_the_documented_table_shows_the_claims_of_accepted_trials() -> None:
    """`claims.py` writes both from the accepted results, with `--write` and `--markdown`."""
    root = BENCHMARKS.parent
    text = (root / "docs" / "claims.md").read_text(encoding="utf-8")
    table = text.partition("<!-- table of claims.py -->")[2].partition("<!-- end of the table -->")[0]
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()[3:]}
    accepted = {path.name for path in (root / "leaderboard" / "measured" / "trials").iterdir()}
    found = yaml.safe_load((root / "leaderboard" / "claims.yaml").read_text(encoding="utf-8"))["claims"]
    measured = [claim for claim in found if claim.get("trials", {}).get("better_keys")]
    assert {claim["claim"] for claim in measured} == rows.keys()
    for claim in measured:
        trials = claim["trials"]
        assert {*trials["better_keys"], *trials["than_keys"]} <= accepted
        low, high = trials["interval"]
        assert f"{trials['difference']} ({low} to {high})" in rows[claim["claim"]]
