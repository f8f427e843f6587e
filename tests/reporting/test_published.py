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
from xmcbench.data.catalog import WITHHELD
from xmcbench.errors import XMCBenchError
from xmcbench.reporting.published import (
    ACCEPTED,
    SHIPPED,
    PublishedRow,
    published_rows,
    read_published,
)

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

# Rows that the papers' tables hold, those of which every cell is empty left out.
ROWS: dict[str, dict[int | str, int]] = {
    "dexml": {1: 22, 2: 14, 3: 10, 4: 10, 8: 10, 9: 4, 10: 6, 11: 8, 12: 8, 13: 6, 14: 2, 15: 5, 16: 3},
    "elmo": {"repository": 11},
    "irene": {"README, generalized zero-shot": 16, "README, zero-shot": 20},
    "lever": {1: 24},
    "lmtx": {2: 41, 3: 4, 4: 6, 5: 9, 6: 6, 7: 4},
    "prime": {2: 20, 3: 19, 4: 17, 5: 8, 6: 6, 8: 56, 9: 7, 11: 2},
    "unidec": {1: 32, 2: 11, 3: 3, 5: 24, 6: 10, 7: 6},
}


@pytest.fixture(scope="module")
def rows() -> tuple[PublishedRow, ...]:
    return published_rows()


def find(rows: tuple[PublishedRow, ...], paper: str, table: int, dataset: str, label: str) -> PublishedRow:
    (row,) = (row for row in rows if (row.source, row.dataset, row.label) == (f"{paper} Table {table}", dataset, label))
    return row


# What ships -------------------------------------------------------------------------------------------------------


def test_every_table_is_there_whole(rows: tuple[PublishedRow, ...]) -> None:
    expected = {
        f"{paper} Table {table}" if isinstance(table, int) else f"{paper} {table}": count
        for paper, tables in ROWS.items()
        for table, count in tables.items()
    }
    assert Counter(row.source for row in rows) == expected
    for paper, tables in ROWS.items():
        assert f"| {sum(tables.values())} |" in next(line for line in DOCS.splitlines() if f"| `{paper}` |" in line)


AT_13M, AT_131K, WIKI = "lf-amazontitles-1.3m", "lf-amazontitles-131k", "lf-wikipedia-500k"


@pytest.mark.parametrize(
    ("paper", "table", "dataset", "label", "printed"),
    [
        ("dexml", 1, AT_13M, "DEXML (DecoupledSoftmax)", "P@1 58.40 P@5 45.46 nDCG@5 54.30 PSP@5 36.58"),
        ("dexml", 2, "eurlex-4k", "XR-Transformer (x3)", "P@1 88.41 P@5 63.18"),
        ("dexml", 3, WIKI, "DEXML (5 hard negatives)", "P@1 83.86 P@5 49.57 R@10 74.60 R@100 89.12"),
        ("dexml", 4, "eurlex-4k", "DEXML (BCE)", "P@1 0.1 P@5 0.07 R@10 0.14 R@100 1.84"),
        ("dexml", 10, "random-pairs-1m", "DEXML (hard negatives)", "P@1 99.93 P@5 20.00 R@10 99.99 R@100 99.99"),
        ("dexml", 16, WIKI, "DEXML (DecoupledSoftmax)", "ROUGE-1 0.1838 ROUGE-3 0.0540 ROUGE-L 0.1387"),
        ("unidec", 2, AT_13M, "UniDEC (encoder + classifier)", "P@1 53.44 P@5 43.55 PSP@1 32.83 PSP@5 38.39"),
        ("unidec", 3, "query2bid-450m", "SupConDE", "P@1 87.33 P@3 74.63 P@5 66.44 P@10 54.13"),
        ("prime", 2, AT_131K, "GraphFormers (encoder)", "P@1 20.84 P@3 13.57 P@5 10.06 PSP@5 24.93"),
        ("prime", 6, AT_13M, "PRIME-lite (w/o R)", "P@1 58.25 PSP@1 30.83 R@100 62.78"),
        ("prime", 8, "lf-wikititles-500k", "PRIME (classifier)", "P@1 46.75 P@5 18.44 PSP@1 25.13 PSP@5 24.31"),
        ("lmtx", 3, "eurlex-4k-lmtx", "LMTX", "P@1 48.8 P@3 29.6 P@5 22.44 R@1 10.05 R@3 17.98 R@5 22.68"),
        ("lmtx", 5, WIKI, "LMTX (Llama2)", "P@1 41.67 P@3 23.53 P@5 17.20 R@1 14.37 R@3 22.74 R@5 26.86"),
    ],
)
def test_rows_are_those_of_the_papers(
    rows: tuple[PublishedRow, ...], paper: str, table: int, dataset: str, label: str, printed: str
) -> None:
    row = find(rows, paper, table, dataset, label)
    assert " ".join(f"{name} {text}" for name, text in row.printed.items()) == printed


def test_facts_are_those_of_the_papers(rows: tuple[PublishedRow, ...]) -> None:
    full = find(rows, "dexml", 1, AT_13M, "DEXML (DecoupledSoftmax)")
    assert (full.batch_size, full.negative_pool, full.training_hours, full.num_devices) == (8192, 1_305_265, 66, 16)
    assert (full.label_text, full.classifier, full.ensemble) == (True, False, None)
    assert find(rows, "dexml", 1, AT_13M, "ECLARE (x3)").ensemble == 3
    memory = find(rows, "dexml", 8, AT_131K, "DEXML (batch 16384, sub-batch 256)")
    assert (memory.metrics, memory.memory_gb, memory.batch_seconds, memory.epoch_hours) == ({}, 53.12, 12.2, 0.06)
    assert find(rows, "dexml", 14, AT_131K, "DEXML (DecoupledSoftmax)").intervals["R@100"] == 0.0004
    pool = find(rows, "unidec", 2, AT_13M, "SupConDE (encoder)")
    assert (pool.batch_size, pool.negative_pool, pool.hardware) == (1098, 4000, "1 x A6000")
    assert find(rows, "unidec", 1, AT_13M, "UniDEC (encoder + classifier)").dimension == 512
    assert find(rows, "lmtx", 4, "amazoncat-13k", "RTS").training_hours == 35.6
    teacher = find(rows, "lmtx", 5, WIKI, "LMTX (Vicuna)")
    assert teacher.settings == {"training_documents": 30_000, "teacher": "vicuna-13b-v1.3"}


def test_papers_that_disagree_are_both_kept(rows: tuple[PublishedRow, ...]) -> None:
    assert find(rows, "unidec", 1, AT_131K, "SiameseXML (classifier)").printed["P@3"] == "30.19"
    assert find(rows, "prime", 2, AT_131K, "SiameseXML (encoder)").printed["P@3"] == "27.92"
    within = [find(rows, "unidec", t, "lf-wikiseealso-320k", "UniDEC (encoder + classifier)") for t in (1, 2, 5)]
    assert [row.printed["PSP@1"] for row in within] == ["34.08", "34.20", "33.29"]


def test_every_dataset_is_in_the_catalogue_and_splits_are_kept_apart(rows: tuple[PublishedRow, ...]) -> None:
    withheld = {card.name for card in WITHHELD}
    for dataset in {row.dataset for row in rows} - withheld:
        assert find_source(dataset).name == dataset
    papers = {dataset: {row.paper for row in rows if row.dataset.startswith(dataset)} for dataset in ("eurlex-4k",)}
    assert papers == {"eurlex-4k": {"dexml", "lmtx"}}
    assert {row.paper for row in rows if row.dataset == "eurlex-4k"} == {"dexml"}
    assert {row.paper for row in rows if row.dataset == "eurlex-4k-lmtx"} == {"lmtx"}


def test_only_lmtx_is_zero_shot(rows: tuple[PublishedRow, ...]) -> None:
    assert {(row.paper, row.track) for row in rows} == {
        ("dexml", "supervised"),
        ("elmo", "supervised"),
        ("irene", "supervised"),
        ("lever", "supervised"),
        ("unidec", "supervised"),
        ("prime", "supervised"),
        ("lmtx", "zero-shot"),
    }


def test_no_two_rows_are_the_same(rows: tuple[PublishedRow, ...]) -> None:
    assert len({row.key for row in rows}) == len(rows)


# What holds of any figures ----------------------------------------------------------------------------------------


def at(row: PublishedRow, family: str) -> list[tuple[int, float, float]]:
    """(k, per cent, how far that may be rounded) of one family of metrics, by k."""
    found = ((*name.split("@"), text) for name, text in row.printed.items() if name.startswith(f"{family}@"))
    return sorted((int(k), float(text), 0.5 / 10 ** len(text.partition(".")[2])) for _, k, text in found)


def test_figures_are_fractions_of_what_is_printed(rows: tuple[PublishedRow, ...]) -> None:
    for row in rows:
        scale = 1 if "ROUGE-1" in row.printed else 100
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
    rising = {row.key for row in rows for (_, few, _), (_, more, _) in pairwise(at(row, "P")) if more > few}
    assert rising == {("lmtx", "Table 3", "eurlex-4k-lmtx", "ICXML", "w/o reranking")}


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
    assert (third.num_devices, third.training_hours) == (3, 0.5)
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
    patterns = project["tool"]["setuptools"]["package-data"]["xmcbench"]
    installed = {path for pattern in patterns for path in (ROOT / "xmcbench").glob(pattern)}
    kept = {path.name for path in (ROOT / "leaderboard" / "published").iterdir()}
    assert kept == {path.name for path in installed if path.parent == SHIPPED}
    assert kept == {f"{paper}.yaml" for paper in ROWS}
    accepted = {path for path in installed if ACCEPTED in path.parents}
    assert accepted == {*ACCEPTED.glob("*/*.jsonl"), *ACCEPTED.glob("*.safetensors")}
    assert sum(len(zlib.compress(path.read_bytes())) for path in accepted) < 1_000_000


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", DOCS, flags=re.DOTALL | re.MULTILINE)
    read = read_published(written(tmp_path / "lee.yaml", block))
    assert [row.label for row in read] == ["Wide (batch 1024)", "Wide (batch 4096)", "NGAME"]
    assert [row.hardware for row in read] == ["4 x A100", "4 x A100", None]


def test_the_documented_program_prints_what_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", DOCS, flags=re.DOTALL | re.MULTILINE)
    exec(block.replace('Path("mine.yaml")', f"Path({str(written(tmp_path / 'mine.yaml', MINE))!r})"))
    assert capsys.readouterr().out.strip() == block.rsplit("# ", 1)[1].strip()
