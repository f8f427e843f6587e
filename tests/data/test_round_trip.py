"""A dataset that is written reads back with the same content hash, from every layout and through every format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_dexml, write_json, write_raw, write_raw_gz, write_xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmcbench.data import Dataset, DatasetCard, PackedTexts, Split, load
from xmcbench.data.formats import read_keys
from xmcbench.data.prepared import content_hash, find_source
from xmcbench.data.source import own_source
from xmcbench.data.text_files import no_pairs, pairs_csr
from xmcbench_plugins.datasets.exporting import card_text, export, import_layout
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.rows import read_rows
from xmcbench_plugins.datasets.inspection import Report

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# What files are read wrongly for: quotation marks, separators, blanks at the ends, marks, signs beyond the first plane.
SIGNS = st.sampled_from(list("aé\"'\\,;|\t: 漢😀\u2028\u0085\ufeff#=<>[]{}0"))
MARK = st.sampled_from(["", '"', '"a"', "'"])  # what a text may begin or end with
LINE = st.builds("".join, st.tuples(MARK, st.text(SIGNS, max_size=8), MARK))
TEXT = st.text(SIGNS | st.sampled_from("\n\r"), max_size=8)


@st.composite
def datasets(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> Dataset:
    """Small datasets with empty texts, rows without labels, labels without rows, ignored pairs."""
    sizes = [draw(st.integers(low, 5)) for low in (3, 1, 1)]
    train, test, labels = (draw(st.lists(texts, min_size=size, max_size=size)) for size in sizes)

    def pairs(rows: int) -> Any:
        drawn = draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, sizes[2] - 1)), max_size=8))
        places = np.array(drawn, np.int64).reshape(-1, 2).T
        return pairs_csr(places[0], places[1], (rows, sizes[2])) if drawn else no_pairs((rows, sizes[2]))

    splits = [Split(PackedTexts.of(part), pairs(len(part))) for part in (train, test)]
    card = DatasetCard(name="made", num_train=sizes[0], num_test=sizes[1], num_labels=sizes[2])
    return Dataset(card, *splits, PackedTexts.of(labels), pairs(sizes[0]), pairs(sizes[1]))


WRITERS = [write_json, write_raw, write_raw_gz, write_dexml, write_xr]


@pytest.mark.parametrize("layout", ["text", "json"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda writer: writer.__name__[6:])
@QUICK
@given(dataset=datasets(st.text(st.sampled_from("aé\"'\\,;|\t: 漢😀\u2028#=[]0"), max_size=8)))
def test_an_export_of_any_layout_reads_back(
    write: Callable[[Path, Dataset], None], layout: Any, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    write(folder / "first", dataset)
    (folder / "first" / "card.yaml").write_text("propensity_a: 0.6\npropensity_b: 2.6\nmax_length: 64\nlicence: CC0\n")
    source = own_source(folder / "first")
    before = source.read(folder)
    assert export(before, folder / "second", source.draft, read_keys(folder / "first"), layout) == 0
    (folder / "third").mkdir()
    import_layout(folder / "second", folder / "third")
    for name in ("second", "third"):
        after = own_source(folder / name).read(folder)
        assert content_hash(after) == content_hash(before)
        for fact in ("propensity_a", "propensity_b", "max_length", "max_label_length", "licence"):
            assert getattr(after.card, fact) == getattr(before.card, fact)


@QUICK
@given(dataset=datasets(TEXT))
def test_json_keeps_every_text_and_raw_text_counts_what_it_changes(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    draft = find_source("catalog-50").draft.model_copy(update={"name": "made"})
    export(dataset, folder / "json", draft, layout="json")
    after = own_source(folder / "json").read(folder)
    parts = (dataset.train.texts, dataset.test.texts, dataset.label_texts)
    assert [list(part) for part in (after.train.texts, after.test.texts, after.label_texts)] == [*map(list, parts)]
    changed = export(dataset, folder / "text", draft)
    lines = own_source(folder / "text").read(folder)
    different = sum(
        one != other
        for part, read in zip(parts, (lines.train.texts, lines.test.texts, lines.label_texts), strict=True)
        for one, other in zip(part, read, strict=True)
    )
    assert different <= changed
    assert (changed == 0) == (different == 0)


def test_a_card_states_what_it_stated(tmp_path: Path) -> None:
    """A limit that follows the data would be fixed if the export stated it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "card.yaml").write_text("max_length: 64\n")
    assert card_text(own_source(tmp_path / "own").draft) == "max_length: 64\n"


@pytest.mark.parametrize("layout", ["text", "json"])
def test_keys_of_labels_are_kept(tmp_path: Path, layout: Any) -> None:
    dataset = load("catalog-50", tmp_path, tmp_path / "cache")
    keys = [f"http://x/{i}" for i in range(dataset.card.num_labels)]
    export(dataset, tmp_path / "own", find_source("catalog-50").draft, keys, layout)
    assert read_keys(tmp_path / "own") == keys
    assert load("own", tmp_path, tmp_path / "cache").card.content_hash == dataset.card.content_hash


# Rows through tables ------------------------------------------------------------------------------------------------

LABEL = st.text(SIGNS | st.sampled_from("bcd"), min_size=1, max_size=6).map(str.strip).filter(bool)
# Without what separates labels, and what would make a field a list.
PLAIN_LABEL = st.text(st.sampled_from("abé漢😀-.# "), min_size=1, max_size=6).map(str.strip).filter(bool)


def tables(texts: st.SearchStrategy[str], labels: st.SearchStrategy[str]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(texts, st.lists(labels, unique=True, max_size=3)), min_size=1, max_size=6)


def read(path: Path, **options: str) -> list[tuple[str, list[str]]]:
    return [(row.text, row.labels) for row in read_rows(path, Options(**options), Report())]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@QUICK
@given(rows=tables(TEXT.map(lambda text: text.replace("\r", "")), PLAIN_LABEL))
def test_csv_reads_back(rows: list[Any], encoding: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "a.csv"
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows([["text", "labels"], *([text, ";".join(labels)] for text, labels in rows)])
    assert read(path, encoding=encoding) == rows


@QUICK
@given(rows=tables(LINE.map(lambda text: text.replace("\t", "")), PLAIN_LABEL))
def test_tsv_without_quoting_reads_back(rows: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tsv"
    content = "".join(f"{text}\t{';'.join(labels)}\n" for text, labels in rows)
    path.write_bytes(f"text\tlabels\n{content}".encode())
    assert read(path) == rows


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet"])
@QUICK
@given(rows=tables(TEXT, LABEL))
def test_lists_read_back(rows: list[Any], form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / f"a.{form}"
    records = [{"text": text, "labels": labels} for text, labels in rows]
    if form == "parquet":
        schema = pa.schema({"text": pa.string(), "labels": pa.list_(pa.string())})
        pq.write_table(pa.Table.from_pylist(records, schema), path)
    else:
        lines = map(json.dumps, records)
        path.write_text("[" + ",\n".join(lines) + "]" if form == "json" else "\n".join(lines))
    assert read(path) == rows


@pytest.mark.parametrize("written", [repr, json.dumps])
@QUICK
@given(rows=tables(LINE, LABEL))
def test_written_lists_read_back(
    written: Callable[[Any], str], rows: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "labels"], *([text, written(labels)] for text, labels in rows)])
    assert read(path) == rows


WORDS = ["Töpferöfen", "Gläser", "Färben", "Müller’s", "Straße", "Café", "niño", "coração", "été", "Ångström", "plain"]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@QUICK
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
def test_western_text_is_read_in_its_encoding(
    encoding: str, words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tsv"
    content = "text\tlabels\n" + "".join(f"a text about {word} here\t{word}\n" for word in words)
    path.write_bytes(content.encode(encoding))
    assert read(path) == [(f"a text about {word} here", [word]) for word in words]
