"""Each verdict is decided by one function, whose callers docs/architecture.md names; a case on each side of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from claims import column, finding_shown

from xmcbench.evaluation.significance import Estimate, Relation, Sample, relation_shown, tied_with_best
from xmcbench.reporting.ranked_groups import of_all
from xmcbench.reporting.rows import MARGIN, Reproduced
from xmcbench.trial.budget import Budget, over_budget
from xmcbench_plugins.board.verified import Retraining, Verification, reproduced

ROOT = Path(__file__).parents[1]
TABLE = re.compile(
    r"^\| (?P<verdict>[^|]+) \| `(?P<file>[^`]+)`: `(?P<name>\w+)` \| (?P<callers>[^|]*) \|$", re.MULTILINE
)


def sources() -> Iterator[Path]:
    for folder in ("xmcbench", "plugins", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")


def uses(path: Path, name: str) -> bool:
    """Whether a module names a function: calls it, passes it on or asks an attribute of that name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(tree)
    )


def verdicts() -> list[re.Match[str]]:
    section = (
        (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Verdicts")[2].partition("\n## ")[0]
    )
    return list(TABLE.finditer(section))


def test_the_table_has_every_verdict() -> None:
    names = [own["verdict"] for own in verdicts()]
    comparisons = ["tie", "above, below, equal, undecided", "claim", "converged"]
    assert names == ["over budget", *comparisons, "metric that ranks", "verified"]


@pytest.mark.parametrize("own", verdicts(), ids=lambda own: own["verdict"])
def test_who_calls_a_verdict_is_who_is_named(own: re.Match[str]) -> None:
    place = ROOT / own["file"]
    assert f"def {own['name']}(" in place.read_text(encoding="utf-8")
    callers = {str(path.relative_to(ROOT)) for path in sources() if path != place and uses(path, own["name"])}
    assert sorted(callers) == sorted(re.findall(r"`([^`]+)`", own["callers"]))


@pytest.mark.parametrize(("limit", "over"), [(950, {}), (899, {"encoder_tokens": 101.0})])
def test_over_budget(limit: int, over: dict[str, float]) -> None:
    """The largest step excuses itself, up to four mean steps."""
    spent = {"steps": 10, "encoder_tokens": 1000, "largest_step": {"encoder_tokens": 100}}
    assert over_budget(Budget(encoder_tokens=limit), spent).keys() == over.keys()


def sample(value: float, noise: float) -> Sample:
    noise_B = np.random.default_rng(int(1000 * value)).normal(scale=noise, size=400)
    return Sample((0,), np.array([value]), value + noise_B[None])


@pytest.mark.parametrize(("noise", "tied"), [(0.05, True), (0.001, False)])
def test_tie(noise: float, tied: bool) -> None:
    assert tied_with_best([sample(0.52, noise), sample(0.5, noise)]) == [False, tied]


@pytest.mark.parametrize(
    ("value", "error", "significant", "found"),
    [
        (0.02, 0.001, True, Relation.ABOVE),
        (-0.02, 0.001, True, Relation.BELOW),
        (0.001, 0.001, False, Relation.EQUAL),
        (0.001, 0.1, False, Relation.UNDECIDED),
    ],
)
def test_relation(value: float, error: float, significant: bool, found: Relation) -> None:
    assert relation_shown(Estimate(value, error), significant, 0.01) is found
    assert relation_shown(Estimate(value, error), significant) is not Relation.EQUAL, "equal needs a margin"


@pytest.mark.parametrize(
    ("value", "error", "found"), [(0.1, 0.01, "seen"), (-0.1, 0.01, "not seen"), (0.1, 0.2, "undecided")]
)
def test_claim(value: float, error: float, found: str) -> None:
    """By the metric that it names, against what the paper prints of it; another column decides nothing."""
    estimate, other = Estimate(value, error), Estimate(-0.3, 0.01)
    columns = [column("P@5", 0.5, 0.4, estimate, estimate.p), column("P@1", 0.5, 0.4, other, other.p)]
    assert finding_shown(columns, {"P@5": {"eurlex-4k": 1.2}, "P@1": {"eurlex-4k": 1.0}}, "P@5") == found


@pytest.mark.parametrize("margin", [MARGIN, MARGIN + 0.01])
def test_verified(margin: float) -> None:
    fresh = Verification(records={"a": "b"}, commits=[], seeds=[5, 6, 7], margins={"P@1": 0.1, "P@5": margin})
    again = Retraining(records={"a": "b"}, commits=[], points={"P@1": margin}, costs={"flops": 1.0})
    assert fresh.agrees is again.agrees is (margin <= MARGIN)
    other_costs = {"flops": 1.5}
    assert not Retraining(records={"a": "b"}, commits=[], points={"P@1": 0.0}, costs=other_costs).agrees
    state = reproduced(fresh)
    assert (state is Reproduced.VERIFIED, reproduced(again) is Reproduced.RETRAINED) == (fresh.agrees, again.agrees)
    assert of_all([state, None]) is (None if fresh.agrees else Reproduced.NOT), "one trial of two was trained again"
