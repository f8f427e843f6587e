"""The score of the shared tasks LLMs4Subjects equals its definition, record by record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import shared_task
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.llms4subjects import LibraryRecord

SUBJECTS = st.sampled_from([f"gnd:{number}" for number in range(8)])
CUTOFFS = (1, 3, 5)
RECORDS = st.lists(
    st.tuples(st.sampled_from(["Book/de", "Book/en", "Thesis/de"]), st.sets(SUBJECTS, min_size=1), st.lists(SUBJECTS)),
    min_size=1,
    max_size=12,
)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@given(RECORDS)
def test_every_value_equals_the_definition(drawn: list[tuple[str, set[str], list[str]]]) -> None:
    gold = [LibraryRecord(f"3A{n}", cell, "title", "", true) for n, (cell, true, _) in enumerate(drawn)]
    ranked = {f"3A{n}": answer for n, (_, _, answer) in enumerate(drawn)}
    found = shared_task.scores(gold, ranked, CUTOFFS)
    cells = sorted({cell for cell, _, _ in drawn})
    recalls = []
    for k in CUTOFFS:
        of_cells = []
        for cell in cells:
            rows = [(len(true & set(answer[:k])), len(true)) for at, true, answer in drawn if at == cell]
            p, r = mean([hits / k for hits, _ in rows]), mean([hits / size for hits, size in rows])
            of_cells.append((p, r, 2 * p * r / (p + r) if p + r else 0.0))
        for name, values in zip(("P", "R", "F1"), zip(*of_cells, strict=True), strict=True):
            assert found[f"{name}@{k}"] == pytest.approx(mean(list(values)))
        recalls.append(mean([r for _, r, _ in of_cells]))
    assert found["average recall"] == pytest.approx(mean(recalls))


def test_a_record_without_an_answer_counts(tmp_path: Path) -> None:
    gold = [LibraryRecord("3A1", "Book/de", "", "", {"gnd:1"}), LibraryRecord("3A2", "Book/de", "", "", {"gnd:1"})]
    run = tmp_path / "Book" / "de"
    run.mkdir(parents=True)
    (run / "3A1.json").write_text(json.dumps({"dcterms:subject": ["gnd:1"]}))
    assert shared_task.scores(gold, shared_task.released(tmp_path))["average recall"] == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["{", "[]", '{"dcterms:subject": "gnd:1"}', "{}"])
def test_a_damaged_answer_is_one_line_with_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "3A1.json").write_text(text)
    with pytest.raises(XMCBenchError, match=r"3A1\.json: .*expected an object with a list"):
        shared_task.released(tmp_path)
