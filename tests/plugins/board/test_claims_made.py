"""Claims: what trials say of two rows of a table, column by column, and one line for what cannot be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import claims
import pytest
import yaml
from fakes.bench import Bench
from reporting.made import cited

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import Estimate, difference
from xmcbench.plugins.registry import registry
from xmcbench.reporting.published import published_rows
from xmcbench.trial.store import Store
from xmcbench_plugins.board.claims import ClaimFile, Column, Regime, read_claims
from xmcbench_plugins.board.results import ACCEPTED

ROOT = Path(__file__).parents[3]
METHODS = {"neighbours": {"method": "tfidf-nn"}, "popular": {"method": "popular"}, "again": {"method": "popular"}}
SEEDS = [0, 1, 2, 3, 4]
TABLE = [cited("M", 0.5, variant="with"), cited("M", 0.4, variant="without")]
PAPER = {"table": "dexml Table 1", "better": "M (with)", "than": "M (without)"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with suites, and a store with the trials of two of them."""
    root = tmp_path_factory.mktemp("claims")
    for name, seeds, epochs in (("run", SEEDS, 1), ("few", SEEDS[:2], 1), ("later", SEEDS, 2), ("longer", SEEDS, 3)):
        suite = {"name": name, "datasets": ["catalog-200"], "budget": {"epochs": epochs}}
        suite |= {"methods": METHODS, "seeds": seeds, "metrics": ["P@1", "P@5"]}
        (root / f"{name}.yaml").write_text(yaml.safe_dump(suite))
    for name in ("run", "longer"):
        Bench(root).run(root / f"{name}.yaml", data=root, debug=True)
    return root


def compared(root: Path, *here: dict[str, Any], questions: Any = (), table: Any = TABLE) -> ClaimFile:
    """What becomes of one claim; `here` are pairs, neighbours over popular of the suite `run` unless they differ."""
    pairs = [{"suite": "run", "better": "neighbours", "than": "popular"} | pair for pair in here or [{}]]
    planned = {"id": "a-claim", "claim": "a claim", "paper": PAPER, "here": pairs}
    plan = claims.Plan.model_validate({"seeds": SEEDS, "claims": [planned], "questions": list(questions)})
    comparison = claims.Comparison(plan, claims.Trials(root / "results", root, SEEDS, root), table)
    found = ClaimFile(claims=tuple(comparison.claims()), questions=tuple(comparison.questions()))
    assert not comparison.problems, comparison.problems
    return found


def findings(file: ClaimFile) -> list[str]:
    return [regime.finding for regime in file.claims[0].regimes]


def test_every_column_has_its_difference_and_the_regime_its_scale(root: Path) -> None:
    (claim,) = compared(root).claims
    (regime,) = claim.regimes
    assert [column.metric for column in regime.columns] == ["P@1", "P@5"]
    assert (regime.finding, regime.verdict) == ("seen", "seen here")
    assert str(regime.scale) == "catalog-200, 200 labels, tfidf-nn, 1 epoch"
    store = Store(root / "results")
    sides = [[store.record(key) for key in keys] for keys in (regime.better_keys, regime.than_keys)]
    found = difference(*(stored_samples(store, [r for r in side if r], ["P@1"])["P@1"] for side in sides))
    assert regime.columns[0].difference == f"{100 * found.value:+.2f}"
    assert regime.columns[0].interval == tuple(f"{100 * end:+.2f}" for end in found.interval)


def test_findings_follow_the_signs_of_both(root: Path) -> None:
    turned, same, later = (
        {"better": "popular", "than": "neighbours"},
        {"better": "popular", "than": "again"},
        {"suite": "later"},
    )
    assert findings(compared(root, {}, turned, same, later)) == ["seen", "not seen", "undecided", "not run yet"]
    mixed = [*TABLE[:1], cited("M", variant="without", metrics={"P@1": 0.4, "P@5": 0.9})]  # the paper loses P@5
    assert findings(compared(root, {}, turned, table=mixed)) == ["seen", "not seen"], "P@1 decides alone"
    other = [
        row.model_copy(update={"dataset": "other", "metrics": {"P@1": 1 - row.metrics["P@1"], "P@5": 0.3}})
        for row in TABLE
    ]
    assert findings(compared(root, {}, table=[*TABLE, *other])) == ["undecided"], "P@1 has no sign in the paper"


def test_signs_and_findings_by_hand() -> None:
    assert [
        claims.papers_sign(own) for own in ({"a": 1.0}, {"a": -1.0, "b": -2.0}, {"a": 1.0, "b": -1.0}, {"a": 0.0})
    ] == [
        "+",
        "-",
        "?",
        "?",
    ]
    assert claims.finding_shown((), {}, "P@1") == "not run yet"
    papers = {"a": {"d": 1.0}, "b": {"d": -1.0}}
    for sign, found in (("+", "seen"), ("-", "not seen"), ("?", "undecided")):
        named, other = (
            Column(metric=metric, better="1", than="1", difference="0", interval=("0", "0"), sign=own)
            for metric, own in (("a", sign), ("b", "+"))
        )
        assert claims.finding_shown((named, other), papers, "a") == found


def test_words_of_a_reproduction_need_the_papers_scale() -> None:
    scale = {"dataset": "d", "labels": 9, "encoder": "e", "length": "9 epochs"}
    for papers, words in (
        (False, ["seen here", "not seen here", "undecided here"]),
        (True, ["reproduced", "contradicted", "undecided"]),
    ):
        regimes = [
            Regime.model_validate(
                {"suite": "s", "better": "a", "than": "b", "finding": own, "scale": scale | {"papers": papers}}
            )
            for own in ("seen", "not seen", "undecided")
        ]
        assert [regime.verdict for regime in regimes] == words


def test_the_scale_is_the_papers_where_dataset_encoder_and_epochs_are(root: Path) -> None:
    for facts, papers in (
        ({"dataset": "catalog-200", "epochs": 1, "encoder": "tfidf-nn"}, True),
        ({"dataset": "catalog-200", "epochs": 100, "encoder": "tfidf-nn"}, False),
        ({"dataset": "catalog-200", "epochs": 1, "encoder": "distilbert-base"}, False),
        ({"dataset": "made", "epochs": 1, "encoder": "tfidf-nn"}, False),
        ({"dataset": "catalog-200", "epochs": None, "encoder": "tfidf-nn"}, False),
    ):
        table = [row.model_copy(update=facts) for row in TABLE]
        (regime,) = compared(root, table=table).claims[0].regimes
        assert regime.scale is not None
        assert regime.scale.papers == papers, facts


def test_p_values_are_corrected_for_claims_that_are_missing_too() -> None:
    clear, near = Estimate(0.1, 0.01), Estimate(0.02, 0.008)  # p = 0.012
    found = claims.corrected({("a", "P@1"): clear, ("b", "P@1"): near, ("c", "P@1"): None})
    assert found["b", "P@1"] == pytest.approx(2 * near.p)
    apart = claims.corrected({("a", "P@1"): clear, ("b", "P@5"): near})
    assert apart["b", "P@5"] == pytest.approx(near.p)
    assert claims.corrected({("b", "P@1"): near, **{(n, "P@1"): None for n in range(4)}})["b", "P@1"] > 0.05


def test_a_reason_is_the_difference_of_two_differences(root: Path) -> None:
    """Neighbours and popular need no epochs: longer training changes nothing."""
    pair = {"suite": "longer", "better": "neighbours", "than": "popular"}
    asked = {"id": "longer", "question": "longer", "of": "a-claim", "at": 0, "here": pair}
    other = {"id": "other", "question": "other", "of": "a-claim", "here": pair | {"better": "again"}}
    later = {"id": "later", "question": "later", "of": "a-claim", "here": pair | {"suite": "later"}}
    questions = compared(root, questions=[asked, other, later]).questions
    assert [(own.metric, own.difference, own.sign) for own in questions[0].changes] == [
        ("P@1", "+0.00", "?"),
        ("P@5", "+0.00", "?"),
    ]
    assert [own.sign for own in questions[1].changes] == ["-", "-"]
    assert (questions[2].changes, questions[2].regime.finding) == ((), "not run yet")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ({"better": "neighbors"}, r"unknown trial 'catalog-200/neighbors' \(did you mean 'catalog-200/neighbours'"),
        ({"suite": "few"}, r"few: neighbours has the seeds \[0, 1\] of \[0, 1, 2, 3, 4\]"),
    ],
)
def test_what_cannot_be_compared_is_one_line(root: Path, pair: dict[str, Any], message: str) -> None:
    trials = claims.Trials(root / "results", root, SEEDS, root)
    with pytest.raises(XMCBenchError, match=message) as raised:
        trials.attempt(claims.Pair(**{"suite": "run", "better": "neighbours", "than": "popular"} | pair), ["P@1"])
    assert "\n" not in str(raised.value)


def test_fewer_than_five_seeds_are_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("seeds: [0, 1, 2, 3, 3]\nclaims: []\n")
    with pytest.raises(XMCBenchError, match=r"seeds: found \[0, 1, 2, 3, 3\], expected 5 different ones or more"):
        claims.read_plan(path)


def test_trials_of_older_code_count_and_are_marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = registry().method("popular").thing
    version = method.info.version
    monkeypatch.setattr(method, "info", replace(method.info, version=version + 1))
    (regime,) = compared(root).claims[0].regimes
    assert (regime.finding, regime.older) == ("seen", f"method {version}, now {version + 1}")


# What the project holds -------------------------------------------------------------------------------------------


def test_the_planned_claims_are_the_written_ones() -> None:
    plan, file, published = claims.read_plan(ROOT / "benchmarks" / "claims.yaml"), read_claims(), published_rows()
    assert [own.id for own in plan.claims] == [own.id for own in file.claims]
    assert [own.id for own in plan.questions] == [own.id for own in file.questions]
    for planned, written in zip(plan.claims, file.claims, strict=True):
        assert bool(planned.needs) != (len(planned.here) >= 2), planned.id
        assert planned.paper == written.paper
        assert written.shown in planned.paper.printed(published), planned.id
        assert [(pair.suite, pair.better, pair.than) for pair in planned.here] == [
            (regime.suite, regime.better, regime.than) for regime in written.regimes
        ]
    for question in plan.questions:
        assert question.metrics or question.of in {own.id for own in plan.claims}


def test_written_differences_follow_from_accepted_records() -> None:
    """Of claims whose records have left, nothing is known: `claims.py` says "not run yet" of them."""
    store, file, published = Store(ACCEPTED), read_claims(), published_rows()
    regimes = [(own, claim.shown, claim.paper.printed(published)) for claim in file.claims for own in claim.regimes]
    for regime, shown, papers in [*regimes, *((question.regime, "", None) for question in file.questions)]:
        if not regime.columns:
            continue
        names = [column.metric for column in regime.columns]
        sides = [[store.record(key) for key in keys] for keys in (regime.better_keys, regime.than_keys)]
        assert all(len(side) == len(SEEDS) for side in sides)
        records = [[record for record in side if record] for side in sides]
        assert [len(own) for own in records] == [len(SEEDS)] * 2, f"{regime.suite}: run benchmarks/claims.py again"
        better, than = (stored_samples(store, own, names) for own in records)
        for column in regime.columns:
            found = difference(better[column.metric], than[column.metric])
            assert column.difference == f"{100 * found.value:+.2f}", regime.suite
            assert column.interval == tuple(f"{100 * end:+.2f}" for end in found.interval), regime.suite
            assert column.sign == "?" or found.significant
        if papers is not None:
            assert regime.finding == claims.finding_shown(regime.columns, papers, shown)


def test_the_document_is_short() -> None:
    prose = [line for line in (ROOT / "docs" / "claims.md").read_text().splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 400


def test_a_difference_of_differences_has_the_error_of_both() -> None:
    first, second = Estimate(0.03, 0.01, 0.02, 4.0), Estimate(0.01, 0.02, 0.01, 4.0)
    found = claims.difference_of_independent(first, second)
    assert found.value == pytest.approx(0.02)
    assert found.error == pytest.approx(math.hypot(0.01, 0.02, 0.02, 0.01))
    assert 4 < found.seed_freedom < 8
