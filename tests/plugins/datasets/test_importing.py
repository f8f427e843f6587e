"""Datasets in other formats become a folder that loads; what is wrong with a file is one line with its place."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from xmcbench.data import Dataset, load
from xmcbench.data.importer import Row
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.datasets.commands import app
from xmcbench_plugins.datasets.download import listed, unpack
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.importing.rows import read_rows as read_from
from xmcbench_plugins.datasets.importing.vocabulary import read_label_texts
from xmcbench_plugins.datasets.inspection import Kind, Report

ROWS = [(f"text {i}, \u00e4", ["red", "blue"] if i % 2 else ["green"]) for i in range(20)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))


def read_rows(path: Path, report: Report | None = None, **options: str) -> list[Row]:
    return list(read_from(path, Options(**options), report or Report()))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def pairs(dataset: Dataset) -> Iterator[tuple[str, set[str]]]:
    for split in (dataset.train, dataset.test):
        for row, text in enumerate(split.texts):
            targets = split.targets
            labels = targets.indices[targets.indptr[row] : targets.indptr[row + 1]]
            yield text, {dataset.label_texts[int(label)] for label in labels}


def write_csv(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> Path:
    lines = [delimiter.join(("title", "tags"))]
    lines += [
        delimiter.join((f'"{text}"', ";".join(labels) if delimiter != ";" else "|".join(labels)))
        for text, labels in ROWS
    ]
    path.write_bytes("\r\n".join(lines).encode(encoding))
    return path


def write_jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps({"title": text, "tags": labels}) + "\n" for text, labels in ROWS))
    return path


def write_parquet(path: Path) -> Path:
    pq.write_table(pa.table({"title": [text for text, _ in ROWS], "tags": [labels for _, labels in ROWS]}), path)
    return path


@pytest.mark.parametrize(
    ("make", "name"),
    [(write_csv, "a.csv"), (write_jsonl, "a.jsonl"), (write_parquet, "a.parquet")],
)
def test_a_table_becomes_a_dataset(tmp_path: Path, make: object, name: str) -> None:
    path = make(tmp_path / name)  # type: ignore[operator]
    run("import", path, "--name", "mine", "--text", "title", "--labels", "tags", "--data", tmp_path / "data")
    dataset = load("mine", tmp_path / "data")
    assert sorted(pairs(dataset)) == sorted((text, set(labels)) for text, labels in ROWS)
    assert 0 < dataset.card.num_test < 12


def test_a_dataset_has_the_name_of_its_file(tmp_path: Path) -> None:
    rows = [f"text {i},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "my-rows.csv").write_text("\n".join(["text,labels", *rows]))
    run("import", tmp_path / "my-rows.csv", "--data", tmp_path / "data")
    assert (tmp_path / "data" / "my-rows").is_dir()


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_detected_and_said(tmp_path: Path, delimiter: str) -> None:
    path, report = write_csv(tmp_path / "a.csv", delimiter), Report()
    rows = read_rows(path, report, text="title", labels="tags", separator="|" if delimiter == ";" else ";")
    assert [row.text for row in rows] == [text for text, _ in ROWS]
    assert [(found.kind, found.example) for found in report.findings] == [(Kind.DELIMITER, delimiter)]


def test_another_encoding_is_detected_and_said(tmp_path: Path) -> None:
    path, report = tmp_path / "a.jsonl", Report()
    text = "F\u00fcr gr\u00f6\u00dfere B\u00e4ume und sch\u00f6ne \u00c4pfel gen\u00fcgt das h\u00e4ufig"
    path.write_bytes(json.dumps({"text": text, "labels": "x"}, ensure_ascii=False).encode("latin-1"))
    assert [row.text for row in read_rows(path, report)] == [text]
    (found,) = report.findings
    assert (found.kind, found.names) == (Kind.ENCODING, ("cp1252",))
    assert "gr\u00f6\u00dfere" in found.example
    report = Report()
    assert [row.text for row in read_rows(path, report, encoding="latin-1")] == [text]
    assert not report.findings


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,lables\na,b\n", "row 1: unknown column 'labels'|unknown column 'labels'"),
        ("a.tsv", "red hat\thats\nblue hat\thats\n", "row 1: no column .*, found 'red hat, hats': .* a first row with"),
        ("a.csv", "text,labels\na,b\nc\n", "row 2: found 1 fields, expected 2"),
        ("a.csv", 'text,labels\n"a,b\n', "row 1: unexpected end of data"),
        ("a.csv", "text,labels\n" + "x" * 2_000_000 + ",b\n", r"row 1: field larger than field limit"),
        ("a.jsonl", '{"text": "a", "labels": [1]}\n{"text": 7, "labels": []}\n', "row 2, column 'text': found 7"),
        ("a.jsonl", '{"text": "a", "labels": {"b": 1}}\n', "row 1, column 'labels': found {'b': 1}"),
        (
            "a.jsonl",
            '{"text": "a", "labels": []}\n{"text"\n',
            "row 2: .* at character 8, expected a JSON object a line",
        ),
        ("a.jsonl", "[1]\n", "row 1: found \\[1\\], expected a JSON object"),
        ("a.parquet", "no parquet", "a.parquet: "),
        ("a.xls", "x", "found the ending '.xls'"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(XMCBenchError, match=message) as caught:
        read_rows(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_rows_without_a_label_are_reported(tmp_path: Path) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text('{"text": "a", "labels": ["v"]}\n{"text": "b", "labels": []}\n{"text": "c", "labels": []}\n')
    test.write_text("".join(f'{{"text": "{text}", "labels": ["v"]}}\n' for text in "xyz"))
    said = run("import", train, "--test", test, "--name", "some", "--data", tmp_path)
    assert "2 training rows and 0 test rows have no label" in said
    assert "no label" not in run("import", test, "--test", test, "--name", "all", "--data", tmp_path)


def test_empty_texts_are_reported(tmp_path: Path) -> None:
    rows, labels = tmp_path / "rows.txt", tmp_path / "labels.txt"
    rows.write_text("0\ta\n1\t\n0,1\tc\n0\td\n")
    labels.write_text("red\n\n")
    options = ["--test", rows, "--format", "pecos", "--data", tmp_path]
    assert "2 rows and 1 labels have an empty text" in run(
        "import", rows, "--name", "some", "--label-texts", labels, *options
    )
    rows.write_text("0\ta\n1\tb\n0,1\tc\n0\td\n")
    assert "empty text" not in run("import", rows, "--name", "none", *options)


def test_repeated_texts_are_reported_and_left_out_on_request(tmp_path: Path) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text("".join(f'{{"text": "{t}", "labels": ["{y}"]}}\n' for t, y in zip("abcca", "vwxyv", strict=True)))
    test.write_text('{"text": "a", "labels": ["v"]}\n{"text": "z", "labels": ["w"]}\n')
    said = run("import", train, "--test", test, "--name", "kept", "--data", tmp_path)
    assert "5 training rows, 2 test rows, 4 labels" in said
    assert "2 rows repeat a text" in said
    assert "1 test rows have a text of the training split: kept" in said
    said = run("import", train, "--test", test, "--name", "unique", "--data", tmp_path, "--deduplicate")
    assert "3 training rows, 1 test rows, 4 labels" in said
    assert dict(pairs(load("unique", tmp_path)))["c"] == {"x", "y"}


def test_a_label_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "labels": ["v1", "v2"]}\n')
    (tmp_path / "labels.csv").write_text("id,text\nv1,first\n")
    with pytest.raises(XMCBenchError, match=r"row 1: found the label 'v2', which has no text \(known: v1"):
        run("import", tmp_path / "a.jsonl", "--name", "x", "--label-texts", tmp_path / "labels.csv", "--data", tmp_path)


def test_beir(tmp_path: Path) -> None:
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "One", "text": "first"}\n{"_id": "d2", "title": "", "text": "second"}\n'
    )
    (beir / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "query {i}"}}\n' for i in range(5)))
    qrels = [("train", "q0 d1 1|q0 d2 1|q1 d2 2|q2 d1 0|q3 d1 1"), ("test", "q4 d2 1")]
    for split, lines in qrels:
        rows = "".join("\t".join(line.split()) + "\n" for line in lines.split("|"))
        (beir / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    run("import", beir, "--format", "beir", "--name", "b", "--data", tmp_path)
    found = dict(pairs(load("b", tmp_path)))
    assert found == {
        "query 0": {"One first", "second"},
        "query 1": {"second"},
        "query 3": {"One first"},
        "query 4": {"second"},
    }


def test_hugging_face_folder(tmp_path: Path) -> None:
    for split, part in (("train", ROWS[:15]), ("test", ROWS[15:])):
        (tmp_path / "hf" / split).mkdir(parents=True)
        table = pa.table({"body": [text for text, _ in part], "topics": [labels for _, labels in part]})
        with pa.ipc.new_stream(str(tmp_path / "hf" / split / "data-00000-of-00001.arrow"), table.schema) as file:
            file.write_table(table)
    run(
        "import",
        tmp_path / "hf",
        "--format",
        "hf",
        "--name",
        "h",
        "--text",
        "body",
        "--labels",
        "topics",
        "--data",
        tmp_path,
    )
    assert sorted(pairs(load("h", tmp_path))) == sorted((text, set(labels)) for text, labels in ROWS)


SKOS = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
<http://x/1> skos:prefLabel "Hund"@de, "dog"@en .
<http://x/2> skos:prefLabel "cat"@en .
"""


def test_annif_with_a_skos_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.ttl").write_text(SKOS)
    (tmp_path / "train.tsv").write_text("".join(f"text {i}\t<http://x/1> <http://x/2>\n" for i in range(4)))
    (tmp_path / "test.tsv").write_text("new\t<http://x/1>\n")
    files = (tmp_path / "train.tsv", "--test", tmp_path / "test.tsv", "--label-texts", tmp_path / "vocabulary.ttl")
    run("import", *files, "--format", "annif", "--name", "a", "--data", tmp_path)
    found = dict(pairs(load("a", tmp_path)))
    assert (found["text 1"], found["new"]) == ({"dog", "cat"}, {"dog"})
    report = Report()
    german = read_label_texts(tmp_path / "vocabulary.ttl", Options(language="de"), report)
    assert german == {"http://x/1": "Hund", "http://x/2": "cat"}
    first = report.worst_first()[0]
    assert (first.kind, first.count) == (Kind.OTHER_LANGUAGE, 1)


def test_pecos_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0,1\tone\n1\ttwo\n\tthree\n")
    (tmp_path / "test.txt").write_text("0\tfour\n")
    (tmp_path / "labels.txt").write_text("first\nsecond\n")
    files = (tmp_path / "train.txt", "--test", tmp_path / "test.txt", "--label-texts", tmp_path / "labels.txt")
    run("import", *files, "--format", "pecos", "--name", "p", "--data", tmp_path)
    assert dict(pairs(load("p", tmp_path))) == {
        "one": {"first", "second"},
        "two": {"second"},
        "three": set(),
        "four": {"first"},
    }


# Archives ---------------------------------------------------------------------------------------------------------

FILES = {
    "trn_X.txt": "a\nb\nc\n",
    "tst_X.txt": "d\n",
    "Y.txt": "x\n",
    "trn_X_Y.txt": "3 1\n0:1\n\n\n",
    "tst_X_Y.txt": "1 1\n0:1\n",
}


def make_zip(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, str], *links: tuple[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content.encode()))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            packed.addfile(info)
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_archive_is_unpacked_wherever_its_folders_lie(tmp_path: Path, make: object) -> None:
    nested = {f"Some Folder/{name}": content for name, content in FILES.items()} | {"README": "no"}
    archive = make(tmp_path / "a.archive", nested)  # type: ignore[operator]
    assert unpack(archive, tmp_path / "data" / "mine").files == sorted(FILES)
    assert load("mine", tmp_path / "data").card.num_train == 3


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_members_that_are_left_out_are_named(tmp_path: Path, make: object) -> None:
    """Worst first: pairs to ignore under another name would be missing from the evaluation."""
    names = ("x/a_filter_tst.txt", "x/trn_X_Xf.txt", "x/\x1b[2J", "__MACOSX/._Y.txt", "card.yaml")
    others = dict.fromkeys(names, "0 0\n")
    archive = make(tmp_path / "a.archive", FILES | others)  # type: ignore[operator]
    left_out = unpack(archive, tmp_path / "data" / "mine").left_out
    assert left_out == sorted(others)
    assert listed(left_out).partition(": ")[2].startswith("'x/a_filter_tst.txt', '__MACOSX/._Y.txt', ")
    assert listed([f"{number}.txt" for number in range(1000)]).endswith("'104.txt' and 992 more")
    assert "\x1b" not in listed(left_out)


def test_an_archive_without_a_dataset_says_what_it_holds(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"Mine/train.txt": "3 2 2\n0 0:1\n", "Mine/Yf.txt": "a\n"})
    with pytest.raises(
        XMCBenchError, match=r"a\.zip: found no dataset, .*; left out, .*: 'Mine/Yf.txt', 'Mine/train.txt'$"
    ):
        unpack(archive, tmp_path / "data" / "mine")
    assert list((tmp_path / "data").iterdir()) == []


def test_hostile_names_and_links_stay_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    moved = {f"../../{name}" if name == "Y.txt" else f"/etc/{name}": content for name, content in FILES.items()}
    archive = make_tar(tmp_path / "a.tar.gz", moved, ("raw/Y.txt", str(tmp_path / "secret")), ("raw", "/tmp"))
    assert unpack(archive, tmp_path / "data" / "mine").files == sorted(FILES)
    assert not (tmp_path / "Y.txt").exists()
    assert not list((tmp_path / "data").rglob("raw"))


def test_a_bomb_is_named_before_it_is_unpacked(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", FILES | {"trn_X.txt": "\0" * 50_000_000})
    with pytest.raises(XMCBenchError, match=r"trn_X.txt declares 50,000,000 bytes, more than"):
        unpack(archive, tmp_path / "data" / "mine")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 no zip", gzip.compress(b"no tar")], ids=["empty", "no zip", "no tar"]
)
def test_what_is_no_archive_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(XMCBenchError, match=r"a\.zip: "):
        unpack(tmp_path / "a.zip", tmp_path / "data" / "mine")


def test_fetch_says_where_to_get_what_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match=r"get it from http.*--from FILE"):
        run("fetch", "lf-amazontitles-131k", "--data", tmp_path)
