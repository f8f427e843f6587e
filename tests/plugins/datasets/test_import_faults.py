"""What is wrong with a file to import is one line, and no text, label or dataset is silently another."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from xmcbench.data import find_source, load
from xmcbench.data.importer import Row
from xmcbench.data.prepared import prepared_copies
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import _remove_unfinished, beside
from xmcbench_plugins.datasets.commands import app
from xmcbench_plugins.datasets.importing.beir import read_beir as read_beir_from
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.rows import read_rows as read_from
from xmcbench_plugins.datasets.importing.vocabulary import read_label_texts as read_texts_from
from xmcbench_plugins.datasets.importing.write import new_folder
from xmcbench_plugins.datasets.inspection import Report


def read_rows(path: Path, **options: str) -> list[Row]:
    return list(read_from(path, Options(**options), Report()))


def read_label_texts(path: Path) -> dict[str, str]:
    return read_texts_from(path, Options(), Report())


def read_beir(folder: Path) -> tuple[dict[str, Iterator[Row]], dict[str, str]]:
    return read_beir_from(folder, Options(), Report())


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XMCBENCH_DATA", str(tmp_path / "data"))


def run(*arguments: object, stdin: str = "") -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def table(path: Path, labels: list[str], columns: str = "text\tlabels") -> Path:
    path.write_text("\n".join([columns, *(f"text {i}\t{label}" for i, label in enumerate(labels))]))
    return path


SUSPICIOUS = ["hot|Aster hinge", "cold|Birch hinge", "hot|Birch hinge", "noisy"] * 25


@pytest.mark.parametrize("sign", ["|", ",", "\\"])
def test_a_wrong_separator_is_asked_about(tmp_path: Path, sign: str) -> None:
    path = table(tmp_path / "a.tsv", [label.replace("|", sign) for label in SUSPICIOUS])
    if sign == "\\":  # no separator that anybody uses
        run("import", path, "--name", "own")
        return
    with pytest.raises(XMCBenchError) as caught:
        run("import", path, "--name", "own")
    assert f"100% of the rows have one label, and 75% have a label with {sign!r}" in str(caught.value)
    assert f"expected --separator {sign!r}, or --separator ';' if that is one label" in str(caught.value)
    assert not (tmp_path / "data" / "own").exists()
    assert "5 labels" in run("import", path, "--name", "own", "--separator", sign)
    said = run("import", path, "--name", "whole", "--separator", ";")
    assert "4 labels" in said
    assert "100% of the rows have one label" in said


def test_a_comma_here_and_there_is_no_separator(tmp_path: Path) -> None:
    labels = ["red; blue", "red", "Smith, John; blue", "green"] * 25
    assert "4 labels" in run("import", table(tmp_path / "a.tsv", labels), "--name", "own")
    labels = ["red"] * 199 + ["Smith, John"]
    assert "2 labels" in run("import", table(tmp_path / "b.tsv", labels), "--name", "other")


def test_an_import_is_replaced_and_removed(tmp_path: Path) -> None:
    first, second = table(tmp_path / "a.tsv", ["red", "blue"] * 20), table(tmp_path / "b.tsv", ["red", "green"] * 20)
    run("import", first, "--name", "own")
    assert list(load("own").label_texts) == ["red", "blue"]
    with pytest.raises(XMCBenchError, match="found a dataset of this name, expected a new --name, or --replace"):
        run("import", second, "--name", "own")
    run("import", second, "--name", "own", "--replace")
    assert sorted(load("own").label_texts) == ["green", "red"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["own"]
    assert len(prepared_copies("own")) == 4  # two folders and their locks
    assert CliRunner().invoke(app, ["remove", "own"], input="n\n").exit_code == 1
    assert "deleted" in run("remove", "own", stdin="y\n")
    assert not prepared_copies("own")
    with pytest.raises(XMCBenchError, match="unknown dataset 'own'"):
        find_source("own")
    with pytest.raises(XMCBenchError, match="found no folder of a dataset"):
        run("remove", "own", "--yes")


def test_an_import_does_not_pass_for_done_where_another_dataset_has_its_name(tmp_path: Path) -> None:
    path, data = table(tmp_path / "a.tsv", ["red", "blue"] * 20), tmp_path / "data"
    run("import", path, "--name", "own")
    older = beside(data / "own", "older")  # an import that was killed between two renames
    (data / "own").rename(older)
    os.utime(older, (0, 0))
    _remove_unfinished.cache_clear()
    with pytest.raises(XMCBenchError, match="found a dataset of this name"):
        run("import", path, "--name", "own")
    assert [folder.name for folder in data.iterdir()] == ["own"]
    refused = pytest.raises(XMCBenchError, match="found a dataset of this name")
    with refused, new_folder(data / "two"), new_folder(data / "two") as made:
        (made / "lbl.json").touch()
    assert sorted(folder.name for folder in data.iterdir()) == ["own", "two"]


def test_a_folder_with_other_files_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", ["red", "blue"] * 20)
    run("import", path, "--name", "own")
    (tmp_path / "data" / "own" / "notes.txt").write_text("mine")
    for command in (("import", path, "--name", "own", "--replace"), ("remove", "own", "--yes")):
        with pytest.raises(XMCBenchError, match=r"notes\.txt: is no file of a dataset; nothing is deleted"):
            run(*command)
    assert (tmp_path / "data" / "own" / "notes.txt").read_text() == "mine"
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data" / "own")
    with pytest.raises(XMCBenchError, match="found no folder of a dataset"):
        run("remove", "link", "--yes")


@pytest.mark.parametrize(
    "name",
    ["catalog-1k", "catalog-777", "", "..", ".own", "-x", "a/b", "a\\b", "a\x1b[31m", "a\u202eb", "x" * 300, " a"],
)
def test_a_name_that_is_never_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(XMCBenchError, match="dataset name: found"):
        run("import", table(tmp_path / "a.tsv", ["red"] * 9), f"--name={name}")
    assert not (tmp_path / "data").exists()


def beir(folder: Path, corpus: list[Any], queries: list[Any], qrels: str = "q1\td1\t1\n") -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    return folder


DOCUMENT, QUERY = {"_id": "d1", "title": "a", "text": "b"}, {"_id": "q1", "text": "c"}
BAD_BEIR: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"corpus": [{"text": "b"}]}, "corpus.jsonl: row 1: unknown key '_id'"),
    "no text": ({"corpus": [DOCUMENT, {"_id": "d2", "title": "b"}]}, "corpus.jsonl: row 2: unknown key 'text'"),
    "no query text": ({"queries": [{"_id": "q1"}]}, "queries.jsonl: row 1: unknown key 'text'"),
    "null text": ({"queries": [{"_id": "q1", "text": None}]}, "row 1, key 'text': found None, expected text"),
    "number": ({"corpus": [{"_id": "d1", "text": 5}]}, "row 1, key 'text': found 5, expected text"),
    "list": ({"corpus": [{"_id": "d1", "text": ["b"]}]}, "row 1, key 'text': found ['b'], expected text"),
    "title": ({"corpus": [{"_id": "d1", "title": 7, "text": "b"}]}, "row 1, key 'title': found 7, expected text"),
    "list as id": ({"corpus": [{"_id": ["d1"], "text": "b"}]}, "row 1, key '_id': found ['d1'], expected text or"),
    "null as id": ({"queries": [{"_id": None, "text": "b"}]}, "row 1, key '_id': found None, expected text or"),
    "id twice": ({"corpus": [DOCUMENT, {"_id": "d1", "text": "x"}]}, "row 2: found 'd1' again, expected each key once"),
    "key twice": ({"queries": ['{"_id": "q1", "text": "a", "text": "b"}']}, "row 1: found 'text' twice, expected each"),
    "score": ({"qrels": "q1\td1\tnan\n"}, "row 1, column 'score': found nan, expected a finite number"),
}


@pytest.mark.parametrize("case", BAD_BEIR)
def test_a_bad_beir_folder_is_one_line(tmp_path: Path, case: str) -> None:
    parts, message = BAD_BEIR[case]
    folder = beir(tmp_path / "beir", **({"corpus": [DOCUMENT], "queries": [QUERY]} | parts))
    with pytest.raises(XMCBenchError) as caught:
        list(read_beir(folder)[0]["train"])
    assert message in str(caught.value)


def test_a_title_may_be_null_and_an_id_a_number(tmp_path: Path) -> None:
    documents = [{"_id": 1, "title": None, "text": "b"}]
    _, texts = read_beir(beir(tmp_path / "beir", documents, [QUERY]))
    assert texts == {"1": "b"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,labels,text\na,b,c\n", "found 'text' twice"),
        ("a.jsonl", '{"text": "a", "labels": [], "labels": ["b"]}', "row 1: found 'labels' twice"),
        ("a.jsonl", '{"text": "a", "labels": [null]}', "row 1, column 'labels': found None"),
        ("a.csv.gz", gzip.compress(b"text,labels\na,b\n" * 99, mtime=0)[:-20], "a.csv.gz: row "),
        ("a.csv.gz", gzip.compress(b"text,labels\na,b\n" * 99, mtime=0)[:40] + b"\0" * 40, "a.csv.gz: row "),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(XMCBenchError, match=message) as caught:
        read_rows(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["undefined", "ascii", "rot13", "no-such", "utf-16", "idna"])
def test_an_encoding_that_does_not_fit_is_one_line(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("text,labels\nä,b\nü,b\n".encode())
    with pytest.raises(XMCBenchError, match=r"a\.csv: "):
        read_rows(tmp_path / "a.csv", encoding=encoding)


def test_an_empty_separator_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match="--separator: found nothing"):
        run("import", table(tmp_path / "a.tsv", ["red"] * 9), "--name", "own", "--separator", "")


@pytest.mark.parametrize("arguments", [[], ["--format", "annif"], ["--format", "pecos", "--label-texts", "rows.csv"]])
def test_what_is_no_file_is_named_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,labels\na,b\n")
    for missing in [["import", "row.csv", *arguments], ["import", "rows.csv", "--label-texts", "row.csv"]]:
        with pytest.raises(XMCBenchError, match=r"^row.csv: found no such file \(did you mean 'rows.csv'\?\)$"):
            run(*missing)
    Path("row.csv").mkdir()
    expected = "found no .txt or .json file" if "annif" in arguments else "found a folder, expected a file$"
    with pytest.raises(XMCBenchError, match=f"^row.csv: {expected}"):
        run("import", "row.csv", *arguments)


def test_half_a_character_and_a_label_that_is_no_number_have_their_row(tmp_path: Path) -> None:
    rows = ['{"text": "a", "labels": ["b"]}'] * 4
    for bad in ('{"text": "\\ud800", "labels": ["b"]}', '{"text": "a", "labels": ["\\udfff"]}'):
        (tmp_path / "a.jsonl").write_text("\n".join([*rows, bad]))
        with pytest.raises(XMCBenchError, match=r"a.jsonl: row 5: found half a surrogate pair"):
            run("import", tmp_path / "a.jsonl", "--test", tmp_path / "a.jsonl")
    for bad in ("text\t3", "-1\ttext", "1, 2\ttext"):
        (tmp_path / "a.txt").write_text(f"0,1\ttext\n{bad}\n")
        with pytest.raises(XMCBenchError, match=r"a.txt: row 2: found the label '(text|-1| 2)', expected numbers"):
            run("import", tmp_path / "a.txt", "--format", "pecos")


def test_a_dataset_that_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", ["one", "two"])
    with pytest.raises(XMCBenchError, match="found 2 training queries, expected at least 3"):
        run("import", path, "--test", path)
    path = table(tmp_path / "a.tsv", ["one", "two", "three"])
    with pytest.raises(XMCBenchError, match="found num_train = 3, expected 15449 by the card of eurlex-4k"):
        run("import", path, "--test", path, "--name", "eurlex-4k")
    assert not (tmp_path / "data").exists()
    run("import", path, "--test", path)


def test_columns_of_parquet_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    beyond = pa.array([2**62, 2**62], pa.timestamp("us"))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "labels": [["x"], ["y"]], "when": beyond}), path)
    assert [row.text for row in read_rows(path)] == ["a", "b"]
    with pytest.raises(XMCBenchError, match=r"a\.parquet: rows from 1 on: "):
        read_rows(path, labels="when")
    with pytest.raises(XMCBenchError, match=r"unknown column 'txt' \(did you mean 'text'"):
        read_rows(path, text="txt")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_column_that_is_no_text_or_no_utf8_is_one_line(tmp_path: Path, form: str) -> None:
    def write(columns: dict[str, Any]) -> Path:
        made, path = pa.table(columns), tmp_path / f"a.{form}"
        if form == "parquet":
            pq.write_table(made, path)
        else:
            with pa.ipc.new_stream(path, made.schema) as stream:
                stream.write_table(made)
        return path

    with pytest.raises(XMCBenchError, match="row 1, column 'text': found datetime"):
        read_rows(write({"text": [dt.date(2020, 1, 1)], "labels": [["x"]]}))
    broken = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    with pytest.raises(XMCBenchError, match=r"rows from 1 on: .*utf-8"):
        read_rows(write({"text": broken, "labels": [["x"]]}))


def test_label_texts_are_texts_and_each_key_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    for content, message in (
        ('{"key": "a", "text": null}', "row 1: found None, expected text"),
        ('{"key": "a", "text": "b"}\n{"key": "a", "text": "c"}', "row 2: found 'a' again"),
    ):
        path.write_text(content)
        with pytest.raises(XMCBenchError, match=message):
            read_label_texts(path)


@pytest.mark.parametrize("name", ["nanno", "tinny", "mini-lm", "minilm2"])
def test_a_misspelt_encoder_is_named_before_training(name: str) -> None:
    from xmcbench.engine.encoders.settings import EncoderConfig

    with pytest.raises(ValueError, match=f"unknown encoder '{name}' .did you mean"):
        EncoderConfig.model_validate(name)
    with pytest.raises(ValueError, match=r"unknown words 'minlm' .did you mean 'minilm'"):
        EncoderConfig.model_validate({"name": "static", "words": "minlm"})
    for never in ("https://host/model", "~/model"):
        with pytest.raises(ValueError, match="a folder whose path is written out"):
            EncoderConfig.model_validate(never)
    for known in ("tiny", "nano", "minilm", "bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2"):
        assert EncoderConfig.model_validate(known).name == known


def test_a_misspelt_encoder_is_named_before_a_dataset_is_tokenised() -> None:
    with pytest.raises(XMCBenchError, match=r"^unknown encoder 'nanno' .did you mean 'nano'"):
        run("prepare", "catalog-60", "--encoder", "nanno")


def test_a_text_is_not_its_own_label(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match="--text and --labels: found the column 'labels' twice"):
        run("import", table(tmp_path / "a.tsv", ["red"] * 9), "--name", "own", "--text", "labels")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("inner", ['"&a;&a;"', "'&a;'", 'SYSTEM "file:///etc/hostname"', '"plain"'])
def test_a_vocabulary_whose_entities_grow_is_refused(tmp_path: Path, inner: str, encoding: str) -> None:
    """An entity made of ten, made of ten, and so on, is a text of gigabytes in a file of a kilobyte."""
    path = tmp_path / "labels.rdf"
    about, label = "http://a/red", "<s:prefLabel>&b;</s:prefLabel>"
    names = 'xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:s="http://www.w3.org/2004/02/skos/core#"'
    path.write_text(
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE r:RDF [<!ENTITY a "x"><!ENTITY b {inner}>]>'
        f'<r:RDF {names}><r:Description r:about="{about}">{label}</r:Description></r:RDF>',
        encoding=encoding,
    )
    if inner == '"plain"':  # as ontology editors write for their prefixes
        assert read_label_texts(path) == {about: "plain"}
        return
    with pytest.raises(XMCBenchError, match=r"labels\.rdf: found the entity 'b', which is made of others"):
        read_label_texts(path)
