"""Published figures: what ships is what the papers print; a file of one's own is read, or refused with its line."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from xmcbench.data import find_source
from xmcbench.errors import XMCBenchError
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.published import published_rows
from xmcbench_plugins.board.papers import read_published
from xmcbench_plugins.board.results import ACCEPTED, PUBLISHED

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows() -> tuple[PublishedRow, ...]:
    return published_rows()


# What ships -------------------------------------------------------------------------------------------------------


def test_the_documentation_counts_the_rows_of_every_paper(rows: tuple[PublishedRow, ...]) -> None:
    """In a file that loses a row this is another number; that every row is read, `test_printed_rows.py` shows."""
    for paper, count in Counter(row.paper for row in rows).items():
        line = "".join(line for line in DOCS.splitlines() if f"| `{paper}` |" in line)
        assert line, f"the table of papers in docs/published.md needs a line of `{paper}`, which has {count} rows"
        assert f"| {count} |" in line, f"the line of `{paper}` in docs/published.md should say that it has {count} rows"


def test_every_dataset_is_in_the_catalogue_and_splits_are_kept_apart(rows: tuple[PublishedRow, ...]) -> None:
    withheld = {"query2bid-450m"}  # it is not public
    for dataset in {row.dataset for row in rows} - withheld:
        assert find_source(dataset).name == dataset
    split_of_lmtx = {row.paper for row in rows if row.dataset == "eurlex-4k-lmtx"}
    assert split_of_lmtx
    assert not split_of_lmtx & {row.paper for row in rows if row.dataset == "eurlex-4k"}


def test_a_method_that_reads_no_annotation_is_on_the_zero_shot_track_alone(rows: tuple[PublishedRow, ...]) -> None:
    assert {row.track for row in rows if row.paper == "lmtx"} == {"zero-shot"}
    assert {row.track for row in rows if row.method in {"DEXML", "NGAME", "PRIME", "UniDEC"}} == {"supervised"}


# What holds of any figures ----------------------------------------------------------------------------------------


def at(row: PublishedRow, family: str) -> list[tuple[int, float, float]]:
    """(k, per cent, how far that may be rounded) of one family of metrics, by k."""
    found = ((*name.split("@"), text) for name, text in row.printed.items() if name.startswith(f"{family}@"))
    return sorted((int(k), float(text), 0.5 / 10 ** len(text.partition(".")[2])) for _, k, text in found)


def test_figures_are_fractions_of_what_is_printed(rows: tuple[PublishedRow, ...]) -> None:
    for row in rows:
        scale = 1 if {"ROUGE-1", "AverageRecall"} & row.printed.keys() else 100  # printed as fractions
        assert row.metrics == pytest.approx(
            {name: float(text) / scale for name, text in row.printed.items()}, abs=1e-12
        )
        assert all(0 <= value <= 1 for value in (*row.metrics.values(), *row.intervals.values())), row.key


def test_more_predictions_hold_no_fewer_true_labels(rows: tuple[PublishedRow, ...]) -> None:
    """k P@k and R@k cannot fall as k grows."""
    for row in rows:
        for (j, few, coarse), (k, more, fine) in pairwise(at(row, "P")):
            assert k * (more + fine) >= j * (few - coarse), row.key
        for (_, few, coarse), (_, more, fine) in pairwise(at(row, "R")):
            assert more + fine >= few - coarse, row.key


def test_precision_falls_with_k(rows: tuple[PublishedRow, ...]) -> None:
    """No theorem, but what a ranking that is worth anything does; one printed row does not."""
    as_printed = {("lmtx", "Table 3", "eurlex-4k-lmtx", "ICXML", "w/o reranking")}
    rising = {row.key for row in rows for (_, few, _), (_, more, _) in pairwise(at(row, "P")) if more > few}
    assert not rising - as_printed, "read these rows again in their papers; add those that are printed so above"


def test_a_precision_is_at_most_that_of_one_label_where_queries_have_one(rows: tuple[PublishedRow, ...]) -> None:
    for row in rows:
        if row.dataset.startswith("random-pairs"):
            assert row.metrics["P@5"] <= 1 / 5 + 1e-9
            assert row.metrics["R@10"] >= row.metrics["P@1"]


# One's own --------------------------------------------------------------------------------------------------------

MINE = """\
paper: mine
citation: me
encoder: small
settings: {a: 1, b: 1}
tables:
  - table: Figure 2
    dataset: eurlex-4k
    method: M
    encoder: large
    settings: {b: 2.50}
    metrics: [P@1, P@5]
    rows:
      - {figures: [52.20, null]}
      - {variant: other, encoder: null, settings: {c: x}, figures: [100, 0.5]}
  - {table: 3, dataset: eurlex-4k, method: M, rows: [{training_hours: 0.5, hardware: 1 x A100 + 2 x V100 16 GB}]}
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_innermost_fact_counts(tmp_path: Path) -> None:
    first, second, third = read_published(written(tmp_path / "mine.yaml", MINE))
    assert [row.encoder for row in (first, second, third)] == ["large", None, "small"]
    assert second.settings == {"a": 1, "b": "2.50", "c": "x"}
    assert third.settings == {"a": 1, "b": 1}
    assert (first.source, third.source) == ("mine Figure 2", "mine Table 3")
    assert (third.hardware, third.training_hours) == ("1 x A100 + 2 x V100 16 GB", 0.5)
    assert first.place == f"{tmp_path / 'mine.yaml'}:13"


def test_figures_keep_their_digits_and_empty_cells_are_left_out(tmp_path: Path) -> None:
    first, second, third = read_published(written(tmp_path / "mine.yaml", MINE))
    assert (first.printed, first.metrics) == ({"P@1": "52.20"}, {"P@1": 0.522})
    assert (second.printed, second.metrics) == ({"P@1": "100", "P@5": "0.5"}, {"P@1": 1.0, "P@5": 0.005})
    assert (third.printed, third.metrics) == ({}, {})


def test_own_files_and_folders_come_after_what_ships(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.yaml", MINE)
    for given in (path, tmp_path):
        assert [row.paper for row in published_rows(given)][-4:] == ["unidec", "mine", "mine", "mine"]
    with pytest.raises(
        XMCBenchError, match=re.escape(f"mine.yaml:13: mine Figure 2, eurlex-4k, M: this row is at {path}:13")
    ):
        published_rows(path, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(XMCBenchError, match=r"found no \.yaml file"):
        published_rows(tmp_path / "empty")


HEAD = "paper: p\ncitation: c\ntables:\n  - table: 1\n    dataset: d\n    metrics: [P@1, P@5]\n    rows:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: m, figures: [101.5, 1]", ":8: tables[0].rows[0].figures[0]: found '101.5', expected less than"),
        ("method: m, figures: [1, x]", ":8: tables[0].rows[0].figures[1]: found 'x', expected a valid decimal"),
        ("method: m, figures: [1, .nan]", ":8: tables[0].rows[0].figures[1]: found '.nan', expected a valid decimal"),
        ("method: m, figures: [1]", ":8: tables[0].rows[0].figures: found 1 cells, expected 2, one of each metric"),
        ("method: m, figures: [null, null]", ":8: tables[0].rows[0]: found neither a metric nor a cost"),
        ("method: m, figures: [1, 1], intervals: [1]", ":8: tables[0].rows[0].intervals: found 1 cells"),
        ("method: m, figure: [1, 1]", "tables[0].rows[0].figure: unknown key (did you mean 'figures'?)"),
        ("figures: [1, 1]", ":8: tables[0].rows[0]: missing key 'method'"),
        ("method: m, figures: [1, 1], batch_size: 1.5", ".batch_size: found '1.5', expected a valid integer"),
        ("method: m, figures: [1, 1], training_hours: -1", ".training_hours: found -1, expected greater than 0"),
        ("method: m, figures: [1, 1], training_hours: long", ".training_hours: found 'long', expected a valid number"),
        ("method: m, figures: [1, 1], hardware: A100", "found 'A100', expected something like '4 x A100'"),
        ("method: m, figures: [1, 1], track: none", ".track: found 'none', expected 'supervised' or 'zero-shot'"),
        ("method: m, figures: [1, 1]}\n      - {method: m, figures: [2, 2]", ":9: tables[0].rows[1]: the same paper"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path / "p.yaml", f"{HEAD}      - {{{text}}}\n")
    with pytest.raises(XMCBenchError) as caught:
        read_published(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[P@1, P@5]", "[P@1, P@1]"), ":6: tables[0].metrics: found ['P@1', 'P@1'], expected each metric once"),
        (("[P@1, P@5]", "[P@1, P 5]"), ":6: tables[0].metrics[1]: found 'P 5', expected something like 'P@1'"),
        (("paper: p", "paper: A Paper"), ":1: paper: found 'A Paper', expected something like 'dexml'"),
        (("citation: c\n", ""), "missing key 'citation'"),
        (("    dataset: d\n", ""), "missing key 'dataset'"),
        (("    metrics", "    unit: fraction\n    metrics"), "figures[0]: found 2, expected a fraction of at most 1"),
    ],
)
def test_a_mistake_further_out_is_told_likewise(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = written(tmp_path / "p.yaml", HEAD.replace(*change) + "      - {method: m, figures: [2, 1]}\n")
    with pytest.raises(XMCBenchError) as caught:
        read_published(path)
    assert message in str(caught.value)


def test_a_file_cut_off_anywhere_is_rows_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.yaml"
    refused = []
    for end in range(len(MINE)):
        try:
            assert all(row.paper == "mine" for row in read_published(written(path, MINE[:end])))
        except XMCBenchError as problem:
            refused.append(str(problem))
    assert len(refused) > 0.9 * len(MINE)
    assert all(message.startswith(str(path)) for message in refused)


# Where it lies and what is said of it -----------------------------------------------------------------------------


def test_what_ships_is_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["xmcbench_plugins"]
    installed = {path for pattern in patterns for path in (ROOT / "plugins" / "xmcbench_plugins").glob(pattern)}
    kept = {path.name for path in (ROOT / "leaderboard" / "published").iterdir()}
    assert kept == {path.name for path in installed if path.parent == PUBLISHED}
    assert kept == {f"{paper}.yaml" for paper in {row.paper for row in published_rows()}}
    accepted = {path for path in installed if ACCEPTED in path.parents}
    assert accepted == {*ACCEPTED.glob("*/*.jsonl"), *ACCEPTED.glob("*.safetensors")}
    shipped = sum(len(zlib.compress(path.read_bytes())) for path in accepted)
    assert shipped < 4_000_000, "accepted records make the wheel large: let old ones leave, or fetch them"


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", DOCS, flags=re.DOTALL | re.MULTILINE)
    read = read_published(written(tmp_path / "lee.yaml", block))
    assert [row.label for row in read] == ["Wide (batch 1024)", "Wide (batch 4096)", "NGAME"]
    assert [row.hardware for row in read] == ["4 x A100", "4 x A100", None]


def test_the_documented_program_prints_what_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", DOCS, flags=re.DOTALL | re.MULTILINE)
    exec(block.replace('Path("mine.yaml")', f"Path({str(written(tmp_path / 'mine.yaml', MINE))!r})"))
    assert capsys.readouterr().out.strip() == block.rsplit("# ", 1)[1].strip()
