"""Ten small datasets from public reports, each with the right result, and siblings of each kind made here."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from xmcbench.data import Dataset, load
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.datasets.commands import app
from xmcbench_plugins.datasets.sentences import datasheet


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XMCBENCH_DATA", str(tmp_path / "data"))


@pytest.fixture
def cases(shared: Path) -> Path:
    return shared / "cases" / "import"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def imported(*arguments: object) -> tuple[Dataset, str]:
    """The dataset that an import makes, and what it says."""
    said = run("import", *arguments, "--name", "own")
    return load("own"), said


def refused(message: str, *arguments: object) -> None:
    with pytest.raises(XMCBenchError, match=message) as caught:
        run("import", *arguments, "--name", "own")
    assert "\n" not in str(caught.value)


def names(dataset: Dataset) -> set[str]:
    return set(dataset.label_texts)


def rows(dataset: Dataset) -> int:
    return dataset.card.num_train + dataset.card.num_test


def pairs(dataset: Dataset) -> dict[str, set[str]]:
    return {
        text: {dataset.label_texts[int(label)] for label in split.targets[[row]].indices}
        for split in (dataset.train, dataset.test)
        for row, text in enumerate(split.texts)
    }


# The ten cases ------------------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_annif_cp1252(cases: Path) -> None:
    case = cases / "annif-cp1252"
    texts = ("--format", "annif", "--label-texts", case / "voc.tsv")
    dataset, said = imported(case / "corpus.tsv", *texts, "--encoding", "cp1252")
    assert "Töpferöfen" in names(dataset)
    assert "guessed" not in said
    dataset, said = imported(case / "corpus.tsv", *texts, "--replace")
    assert "Töpferöfen" in names(dataset)
    assert "read as cp1252, which was guessed, as in" in said


@pytest.mark.shared
def test_annif_csv_vocabulary(cases: Path) -> None:
    case = cases / "annif-csv-vocab"
    texts = (case / "corpus.tsv", "--format", "annif", "--label-texts", case / "voc.csv")
    dataset, _ = imported(*texts)
    assert {"glass", "pottery"} <= names(dataset)
    dataset, _ = imported(*texts, "--language", "fi", "--replace")
    assert {"glassx", "potteryx"} <= names(dataset)
    refused("found label texts in en, fi, expected 'sv'", *texts, "--language", "sv", "--replace")


@pytest.mark.shared
@pytest.mark.parametrize("layout", ["text", "json"])
def test_export_card(cases: Path, tmp_path: Path, layout: str) -> None:
    run("export", "amz", tmp_path / "data" / "copy", "--layout", layout, "--data", cases / "export-card")
    before, after = load("amz", cases / "export-card").card, load("copy").card
    assert (after.propensity_a, after.propensity_b, after.max_length) == (0.6, 2.6, 64)
    assert after.content_hash == before.content_hash


@pytest.mark.shared
def test_filter_gz(cases: Path) -> None:
    plain, packed = (load(f"filters-{form}", cases / "filter-gz") for form in ("plain", "gz"))
    assert plain.ignore_test.nnz > 0
    assert plain.card.content_hash == packed.card.content_hash


@pytest.mark.shared
def test_hf_classlabel(cases: Path) -> None:
    dataset, said = imported(cases / "hf-classlabel" / "repo", "--format", "hf")
    assert "ceramics" in names(dataset)
    assert not any(text.isdigit() for text in names(dataset))
    assert "16 label texts are the class names" in said


@pytest.mark.shared
def test_hf_missing_shard(cases: Path) -> None:
    repo = cases / "hf-missing-shard" / "repo"
    refused(r"1 of 2 files of the split are missing: train-00001-of-00002\.parquet", repo, "--format", "hf")
    dataset, _ = imported(repo, "--format", "hf", "--yes")
    assert dataset.card.num_train == 45


@pytest.mark.shared
def test_label_homonyms(cases: Path) -> None:
    case = cases / "label-homonyms"
    dataset, said = imported(case / "corpus.tsv", "--format", "annif", "--label-texts", case / "voc.tsv")
    assert len(names(dataset)) == 16
    for text in (said, run("show", "own")):
        assert "32 of 32 labels share their text with another one" in text


@pytest.mark.shared
def test_list_literal_csv(cases: Path) -> None:
    table = (cases / "list-literal-csv" / "papers.csv", "--text", "titles", "--labels", "terms")
    dataset, _ = imported(*table)
    assert len(dataset.label_texts) == 16
    assert {"glass", "leather"} <= names(dataset)
    refused(r"30 of 61 labels begin as a list does", *table, "--separator", ",", "--replace")


@pytest.mark.shared
def test_skos_untagged_and_english(cases: Path) -> None:
    case = cases / "skos-untagged-and-english"
    dataset, _ = imported(case / "corpus.tsv", "--format", "annif", "--label-texts", case / "voc.ttl")
    assert "glass" in names(dataset)
    assert not any(text.startswith("CODE") for text in names(dataset))


@pytest.mark.shared
def test_tsv_raw_quotes(cases: Path) -> None:
    dataset, _ = imported(cases / "tsv-raw-quotes" / "books.tsv")
    assert rows(dataset) == 120
    assert '"methods in metalwork volume 10' in pairs(dataset)


# Quoting ------------------------------------------------------------------------------------------------------------


def lines(path: Path, *content: str) -> Path:
    path.write_text("\n".join(content) + "\n", encoding="utf-8")
    return path


def plain_rows(count: int, sign: str = "\t") -> list[str]:
    return [f"text {i}{sign}{('red', 'blue')[i % 2]}" for i in range(count)]


def test_a_csv_whose_quotation_mark_swallows_rows_is_stopped(tmp_path: Path) -> None:
    """The mark that opens the field of row 3 is closed by that which ends the text of row 6."""
    content = plain_rows(20, ",")
    content[2], content[5] = f'"{content[2]}', 'a table of 5",red'
    path = lines(tmp_path / "a.csv", "text,labels", *content)
    refused(r"a\.csv: row 3: a quotation mark opens a field that holds 3 further rows, such as .*--quoting none", path)
    dataset, _ = imported(path, "--quoting", "none")
    assert rows(dataset) == 20


def test_a_quotation_mark_that_swallows_one_row_is_stopped(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.csv", "text,labels", *plain_rows(9, ","), '"a 5 inch,red', 'table",blue')
    refused("row 10: a quotation mark opens a field that holds 1 further rows, such as 'a 5 inch, red'", first)
    last = lines(
        tmp_path / "b.csv",
        "labels,text",
        *(f"{('red', 'blue')[i % 2]},text {i}" for i in range(20)),
        'red,"a table',
        'blue,of 5"',
    )
    refused("row 21: a quotation mark opens a field that holds 1 further rows, such as 'blue, of 5", last)
    broken = [f'red,"a line\nand, another {i}"' for i in range(20)]
    assert rows(imported(lines(tmp_path / "c.csv", "labels,text", *broken))[0]) == 20


@pytest.mark.parametrize("text", ['"open', 'in the middle " of', '"both"', 'end"'])
def test_a_tsv_has_no_quoting(tmp_path: Path, text: str) -> None:
    dataset, _ = imported(lines(tmp_path / "a.tsv", "text\tlabels", f"{text}\tred", *plain_rows(20)))
    assert pairs(dataset)[text] == {"red"}
    assert rows(dataset) == 21


def test_a_tsv_whose_fields_are_quoted_is_stopped(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.tsv", "text\tlabels", '"he said ""no"""\tred', *plain_rows(20))
    refused("1 fields are enclosed in quotation marks.*--quoting double", path)
    dataset, _ = imported(path, "--quoting", "double")
    assert 'he said "no"' in pairs(dataset)
    path = lines(tmp_path / "b.tsv", '"text"\t"labels"', *(f'"text {i}"\t"red"' for i in range(20)))
    refused("expected names without quotation marks, or --quoting double", path)


@pytest.mark.parametrize("field", ["a\tb", "a\nb"])
def test_a_tab_or_a_line_break_in_a_field_names_its_row(tmp_path: Path, field: str) -> None:
    path = lines(tmp_path / "a.tsv", "text\tlabels", "one\tred", f"{field}\tred", *plain_rows(20))
    refused(r"a\.tsv: row 2: found [13] fields, expected 2: a field holds a tab or a line break", path)


@pytest.mark.parametrize("row", ['"a" b,red', '"never closed,red'])
def test_a_mark_that_is_not_closed_says_what_helps(tmp_path: Path, row: str) -> None:
    path = lines(tmp_path / "a.csv", "text,labels", "one,red", row, *plain_rows(20, ","))
    refused(r"a\.csv: row 2: .*a quotation mark opens a field in this row.*--quoting none", path)


def test_texts_of_several_lines_are_no_swallowed_rows(tmp_path: Path) -> None:
    content = [f'"first, line {i}\nsecond, line\nthird, line",{("red", "blue")[i % 2]}' for i in range(20)]
    dataset, said = imported(lines(tmp_path / "a.csv", "text,labels", *content))
    assert rows(dataset) == 20
    assert "20 of 20 texts hold a tab or a line break" in said


# Lists in a field ---------------------------------------------------------------------------------------------------

LISTS = {
    "python": lambda labels: repr(labels),
    "json": json.dumps,
    "tuple": lambda labels: repr(tuple(labels)),
    "set": lambda labels: repr(set(labels)),
    "numpy": lambda labels: "[" + " ".join(map(repr, labels)) + "]",
    "numpy with a type": lambda labels: f"array({labels!r}, dtype=object)",
    "Python 2": lambda labels: "[" + ", ".join(f"u{label!r}" for label in labels) + "]",
    "bytes": lambda labels: repr([label.encode() for label in labels]),
    "keys of a dict": lambda labels: repr(dict.fromkeys(labels).keys()),
    "R": lambda labels: "c(" + ", ".join(map(json.dumps, labels)) + ")",
    "numpy 2": lambda labels: "[" + ", ".join(f"np.str_({label!r})" for label in labels) + "]",
}


@pytest.mark.parametrize("form", LISTS)
def test_written_lists_are_read(tmp_path: Path, form: str) -> None:
    import csv

    labels = [["red", "it's; blue"], ["green, or so"], ["two words", "red"]] * 8
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["text", "labels"], *([f"text {i}", LISTS[form](own)] for i, own in enumerate(labels))]
        )
    dataset, said = imported(tmp_path / "a.csv")
    assert names(dataset) == {"red", "it's; blue", "green, or so", "two words"}
    assert pairs(dataset)["text 0"] == {"red", "it's; blue"}
    assert "read as written lists" in said


def test_vectors_of_zeros_and_ones_need_the_labels_texts(tmp_path: Path) -> None:
    own = [{"text": f"text {i}", "labels": [int(i % 3 == label) for label in range(3)]} for i in range(20)]
    path = lines(tmp_path / "a.jsonl", *map(json.dumps, own))
    refused("found a vector of 3 zeros and ones", path)
    dataset, _ = imported(path, "--label-texts", lines(tmp_path / "labels.txt", "red", "blue", "green"))
    assert pairs(dataset)["text 1"] == {"blue"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["['a' 'b' ... 'z']"] * 20, "a list that a program cut short"),
        (["['a', None]"] * 20, "found None, expected text"),
        (["['a']"] * 10 + ["b"] * 10, "10 of the first 20 fields of labels are written lists"),
        ([json.dumps([{"id": 1, "name": "a"}])] * 20, "20 of 20 labels seem to be lists"),
        (["[red, blue]"] * 20, "20 of 20 labels seem to be lists"),
        (['{red,"dark blue"}'] * 20, "20 of 20 labels seem to be lists"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path, fields: list[str], message: str) -> None:
    content = [f"text {i}\t{field}" for i, field in enumerate(fields)]
    refused(message, lines(tmp_path / "a.tsv", "text\tlabels", *content))


def test_a_list_that_a_separator_tears_is_stopped(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.tsv", "text\tlabels", *(f"text {i}\t[red, blue {i % 3}]" for i in range(20)))
    refused(r"4 of 4 labels begin as a list does|1 of 4 labels begin as a list does", path, "--separator", ",")


def test_tags_of_stack_exchange_are_read(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.tsv", "text\tlabels", *(f"text {i}\t<c#><{('red', 'blue')[i % 2]}>" for i in range(20)))
    assert pairs(imported(path)[0])["text 1"] == {"c#", "blue"}


@pytest.mark.parametrize(
    ("label", "sign"),
    [("{i} {j} 7", r"' '"), ("A{i} B{j}", r"' '"), ('"red{i}\nred{j}"', r"'\\n'"), ("red{i}|red{j}", r"'\|'")],
)
def test_another_separator_is_asked_about_and_read(tmp_path: Path, label: str, sign: str) -> None:
    content = [f"text {i},{label.format(i=i % 3, j=(i + 1) % 3)}" for i in range(20)]
    path = lines(tmp_path / "a.csv", "text,labels", *content)
    refused(f"100% have a label with {sign} in it.*expected --separator {sign}", path)
    given = sign.strip("'").replace("\\\\", "\\").replace("\\|", "|")
    assert len(pairs(imported(path, "--separator", given)[0])["text 0"]) > 1


def test_a_separator_that_single_labels_have_too_is_doubtful(tmp_path: Path) -> None:
    """Tags stand in several labels; the last part of a path in one alone."""
    colours = ("red", "blue", "green")
    tags = [f"text {i},{colours[i % 3]}/{colours[(i + 1) % 3]}" for i in range(20)]
    paths = [f"text {i},books/{colours[i % 3]}/{i}" for i in range(20)]
    _, said = imported(lines(tmp_path / "a.csv", "text,labels", *tags))
    assert "doubtful" in said
    assert "expected --separator '/'" in said
    _, said = imported(lines(tmp_path / "b.csv", "text,labels", *paths), "--replace")
    assert "--separator" not in said


@pytest.mark.parametrize(("first", "second"), [("1", "1.0"), ("red;blue", '"red,blue"'), ("red", "Red"), ("1", "001")])
def test_labels_that_both_splits_write_differently_are_stopped(tmp_path: Path, first: str, second: str) -> None:
    train, test = (
        lines(tmp_path / f"{name}.csv", "text,labels", *(f"{name} {i},{label}" for i in range(10)))
        for name, label in (("train", first), ("test", second))
    )
    refused("10 of 10 labels of test rows are labels of no training row", train, "--test", test)


def test_texts_that_are_missing_values_or_lists_are_said(tmp_path: Path) -> None:
    content = [f"{'nan' if i == 3 else f'text {i}'}\tred" for i in range(20)]
    _, said = imported(lines(tmp_path / "a.tsv", "text\tlabels", *content))
    assert "1 of 20 texts look like a missing value, such as 'nan'" in said
    content = [f"['a', 'b{i}']\tred" for i in range(20)]
    _, said = imported(lines(tmp_path / "a.tsv", "text\tlabels", *content), "--replace")
    assert "20 of 20 texts begin as a list does" in said


@pytest.mark.parametrize(
    ("begin", "found"),
    [
        (gzip.compress(b"text,labels", mtime=0), "gzip"),
        (b"PK\x03\x04", "zip archive"),
        (b"PAR1", "Parquet"),
        (b"BZh9", "bzip2"),
    ],
)
def test_what_is_no_text_says_so_whatever_its_name(tmp_path: Path, begin: bytes, found: str) -> None:
    for name in ("a.csv", "a.jsonl", "a.tsv.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(begin) if name.endswith(".gz") else begin)
        refused(rf"{name}: found (a )?{found}", path)


def test_numbers_are_stopped_where_another_column_has_the_names(tmp_path: Path) -> None:
    own = [{"text": f"text {i}", "labels": i % 3, "label_text": ("red", "blue", "green")[i % 3]} for i in range(20)]
    for path in (lines(tmp_path / "a.jsonl", *map(json.dumps, own)), tmp_path / "a.parquet"):
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(own), path)
        refused("the labels are numbers, which the column 'label_text' names: --labels label_text", path)
        dataset, _ = imported(path, "--labels", "label_text", "--replace")
        assert names(dataset) == {"red", "blue", "green"}


def test_a_row_per_pair_is_stopped_and_grouped(tmp_path: Path) -> None:
    content = [f"{i},text {i},{label}" for i in range(20) for label in ("red", f"l{i % 4}", "blue")]
    path = lines(tmp_path / "a.csv", "id,text,labels", *content)
    refused("40 of 60 rows repeat a text, and no row has two labels", path)
    dataset, _ = imported(path, "--group-by", "id")
    assert rows(dataset) == 20
    assert pairs(dataset)["text 1"] == {"red", "l1", "blue"}


def test_uris_with_blanks_between_them_are_asked_about(tmp_path: Path) -> None:
    content = [f"text {i}\thttp://x/{i % 3} <http://x/{i % 5}>" for i in range(20)]
    path = lines(tmp_path / "a.tsv", "text\tlabels", *content)
    refused("expected --separator ' '", path)
    imported(path, "--separator", " ")


# Hugging Face -------------------------------------------------------------------------------------------------------


def parquet(path: Path, count: int = 20, first: int = 0, features: dict[str, Any] | None = None) -> None:
    """Rows whose labels are classes 0 to 2, with a description of the columns where there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": [f"{path} {first + i}" for i in range(count)], "labels": [[i % 3] for i in range(count)]})
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


CLASSES = {"names": ["red", "blue", "green"], "_type": "ClassLabel"}
FEATURES = {
    "Sequence": {"labels": {"feature": CLASSES, "_type": "Sequence"}},
    "List": {"labels": {"feature": CLASSES, "length": -1, "_type": "List"}},
    "a list of one": {"labels": [CLASSES]},
}


@pytest.mark.parametrize("form", FEATURES)
def test_class_names_of_the_schema(tmp_path: Path, form: str) -> None:
    for split in ("train", "test"):
        parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet", features=FEATURES[form])
    dataset, _ = imported(tmp_path / "repo", "--format", "hf")
    assert list(dataset.label_texts) == ["red", "blue", "green"]


README = """---
dataset_info:
  features:
  - name: text
    dtype: string
  - name: labels
    sequence:
      class_label:
        names:
          '0': red
          '1': blue
          '2': green
  splits:
  - name: train
    num_examples: {train}
---
# A card
"""


def test_class_names_and_sizes_of_the_card(tmp_path: Path) -> None:
    for split in ("train", "test"):
        parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet")
    lines(tmp_path / "repo" / "README.md", README.format(train=20))
    dataset, _ = imported(tmp_path / "repo", "--format", "hf")
    assert list(dataset.label_texts) == ["red", "blue", "green"]
    lines(tmp_path / "repo" / "README.md", README.format(train=50))
    refused(
        "the train split has 20 rows, and its description says 50", tmp_path / "repo", "--format", "hf", "--replace"
    )


def test_one_configuration_is_read(tmp_path: Path) -> None:
    for config in ("en", "de"):
        for split in ("train", "test"):
            parquet(tmp_path / "repo" / config / f"{split}-00000-of-00001.parquet", features=FEATURES["List"])
    refused("found the configurations de, en, expected one of them: --config", tmp_path / "repo", "--format", "hf")
    dataset, _ = imported(tmp_path / "repo", "--format", "hf", "--config", "de")
    assert dataset.card.num_train == 20
    assert all("/de/" in text for text in dataset.train.texts)
    refused("unknown configuration 'dee' .did you mean 'de'", tmp_path / "repo", "--format", "hf", "--config", "dee")


def test_the_hubs_own_conversion(tmp_path: Path) -> None:
    for split, numbers in (("train", (0, 1, 2)), ("test", (0,))):
        for number in numbers:
            parquet(tmp_path / "r" / "default" / split / f"{number:04}.parquet", 20, 20 * number, FEATURES["List"])
    dataset, _ = imported(tmp_path / "r", "--format", "hf")
    assert dataset.card.num_train == 60
    (tmp_path / "r" / "default" / "train" / "0001.parquet").unlink()
    refused(r"1 of 3 files of the split are missing: 0001\.parquet", tmp_path / "r", "--format", "hf", "--replace")


def test_shards_that_are_numbered_in_another_way(tmp_path: Path) -> None:
    parquet(tmp_path / "repo" / "test.parquet")
    for form in ("train-{}", "train_part_{}", "train-{:05}"):
        for number in (0, 1, 2):
            parquet(tmp_path / "repo" / f"{form.format(number)}.parquet", first=20 * number, features=FEATURES["List"])
        dataset, _ = imported(tmp_path / "repo", "--format", "hf", "--replace")
        assert dataset.card.num_train == 60
        (tmp_path / "repo" / f"{form.format(1)}.parquet").unlink()
        missing = f"1 of 3 files of the split are missing: {form.format(1)}.parquet"
        refused(missing, tmp_path / "repo", "--format", "hf", "--replace")
        for number in (0, 2):
            (tmp_path / "repo" / f"{form.format(number)}.parquet").unlink()


def test_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    other = {"labels": {"feature": {"names": ["blue", "red", "green"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    parquet(tmp_path / "repo" / "train.parquet", features=FEATURES["Sequence"])
    parquet(tmp_path / "repo" / "test.parquet", features=other)
    refused("test.parquet: found 'blue' as the name of class 0, which is 'red' in", tmp_path / "repo", "--format", "hf")


def test_a_split_in_two_formats_is_refused_and_other_files_are_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        parquet(tmp_path / "repo" / f"{split}.parquet")
    lines(tmp_path / "repo" / "classes.txt", "red")
    _, said = imported(tmp_path / "repo", "--format", "hf")
    assert "1 files were not read: classes.txt" in said
    lines(tmp_path / "repo" / "train.csv", "text,labels", *plain_rows(9, ","))
    refused("found train.csv and train.parquet for the train split", tmp_path / "repo", "--format", "hf", "--replace")


def test_a_validation_split_is_no_test_split_unless_told(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet", features=FEATURES["List"])
    refused(r"found no test split .*--test-split validation", tmp_path / "repo", "--format", "hf")
    dataset, _ = imported(tmp_path / "repo", "--format", "hf", "--test-split", "validation")
    assert dataset.card.num_test == 20
    parquet(tmp_path / "repo" / "data" / "test-00000-of-00001.parquet", features=FEATURES["List"])
    _, said = imported(tmp_path / "repo", "--format", "hf", "--replace")
    assert "these splits were not read: validation" in said


def test_a_saved_split_has_the_files_that_its_state_names(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        for number, name in enumerate(("data-00000-of-00002", "data-00001-of-00002", "cache-1f2e")):
            table = pa.table({"text": [f"{split} {number} {i}" for i in range(5)], "labels": [["red"]] * 5})
            with pa.ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as stream:
                stream.write_table(table)
        files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    dataset, _ = imported(tmp_path / "saved", "--format", "hf")
    assert dataset.card.num_train == 10


# Vocabularies -------------------------------------------------------------------------------------------------------

CORPUS = [f"text {i}\t<http://x/{i % 3}>" for i in range(30)]
PREFIX = (
    "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .\n"
    "@prefix owl: <http://www.w3.org/2002/07/owl#> .\n@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
)
SKOS = {
    "a region": '<http://x/{i}> a skos:Concept ; skos:prefLabel "{en}"@en-GB, "{fi}"@fi .',
    "capitals": '<http://x/{i}> a skos:Concept ; skos:prefLabel "{en}"@EN, "C-{i}" .',
    "a code without a tag": '<http://x/{i}> a skos:Concept ; skos:prefLabel "70{i}.1" ; skos:altLabel "{en}"@en .',
    "a code with a tag": '<http://x/{i}> a skos:Concept ; skos:prefLabel "70{i}.1"@en ; rdfs:label "{en}"@en .',
    "SKOS-XL": '<http://x/{i}> a skos:Concept ; xl:prefLabel [ xl:literalForm "{en}"@en ] .',
    "no language": '<http://x/{i}> a skos:Concept ; skos:prefLabel "{en}" .',
    "rdfs": '<http://x/{i}> a skos:Concept ; rdfs:label "{en}"@en .',
    "other things": '<http://x/{i}> a skos:Concept ; skos:prefLabel "{en}"@en .\n'
    '<http://x/s{i}> skos:prefLabel "no"@en .',
    "deprecated": '<http://x/{i}> a skos:Concept ; skos:prefLabel "{en}"@en .\n'
    '<http://x/old{i}> a skos:Concept ; owl:deprecated true ; skos:prefLabel "no"@en .',
}
NAMES = (("dog", "koira"), ("cat", "kissa"), ("horse", "hevonen"))


def annif(tmp_path: Path, vocabulary: Path, *arguments: str) -> tuple[Dataset, str]:
    corpus = lines(tmp_path / "corpus.tsv", *CORPUS)
    return imported(corpus, "--format", "annif", "--label-texts", vocabulary, *arguments)


@pytest.mark.parametrize("form", SKOS)
def test_a_concept_has_its_name(tmp_path: Path, form: str) -> None:
    body = "\n".join(SKOS[form].format(i=i, en=en, fi=fi) for i, (en, fi) in enumerate(NAMES))
    dataset, _ = annif(tmp_path, lines(tmp_path / "voc.ttl", PREFIX, body))
    assert names(dataset) == {"dog", "cat", "horse"}


VOCABULARIES = {
    "a context elsewhere": (
        "v.jsonld",
        '{"@context": "https://example.org/c.jsonld"}',
        "is elsewhere and is not fetched",
    ),
    "name before key": (
        "v.tsv",
        "red\thttp://x/0\nblue\thttp://x/1\n",
        "the label texts are codes, such as 'http://x/0'",
    ),
    "no header": ("v.csv", "http://x/0,red\nhttp://x/1,blue\n", "expected the names of the columns there"),
    "packed": ("v.ttl", gzip.compress(b"@prefix", mtime=0), "found gzip"),
    "XML": ("v.ttl", '<?xml version="1.0"?><a/>', "expected a vocabulary as Turtle, which the ending .ttl says"),
    "quads": ("v.nq", "", r"or of a vocabulary \.ttl"),
}


@pytest.mark.parametrize("form", VOCABULARIES)
def test_a_vocabulary_that_cannot_be_read_says_what_is_expected(tmp_path: Path, form: str) -> None:
    name, content, message = VOCABULARIES[form]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(message, lines(tmp_path / "c.tsv", *CORPUS), "--format", "annif", "--label-texts", path)


@pytest.mark.parametrize("ending", [".ttl.gz", ".nt", ".nt.gz", ".rdf", ".jsonld"])
def test_every_form_of_rdf(tmp_path: Path, ending: str) -> None:
    import rdflib

    body = "\n".join(SKOS["capitals"].format(i=i, en=en, fi=fi) for i, (en, fi) in enumerate(NAMES))
    graph = rdflib.Graph().parse(data=PREFIX + body, format="turtle")
    form = {".ttl": "turtle", ".nt": "nt", ".rdf": "xml", ".jsonld": "json-ld"}[ending.removesuffix(".gz")]
    content = graph.serialize(format=form).encode()
    path = tmp_path / f"voc{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    dataset, _ = annif(tmp_path, path)
    assert names(dataset) == {"dog", "cat", "horse"}


def test_a_name_in_another_language_is_counted(tmp_path: Path) -> None:
    body = '<http://x/0> a skos:Concept ; skos:prefLabel "dog"@en .\n'
    body += "\n".join(f'<http://x/{i}> a skos:Concept ; skos:prefLabel "{fi}"@fi .' for i, fi in ((1, "a"), (2, "b")))
    dataset, said = annif(tmp_path, lines(tmp_path / "voc.ttl", PREFIX, body))
    assert names(dataset) == {"dog", "a", "b"}
    assert "2 of 3 labels have no name in 'en' and got one in another language" in said
    with pytest.raises(XMCBenchError, match=r"found names in fi, en, expected 'sv', or another --language"):
        annif(tmp_path, tmp_path / "voc.ttl", "--language", "sv", "--replace")


TABLES = {
    "voc.csv": [
        "notation,uri,label_fi,label_en",
        *(f"70{i},http://x/{i},{fi},{en}" for i, (en, fi) in enumerate(NAMES)),
    ],
    "voc.tsv": ["uri\tnotation\tlabel_en", *(f"<http://x/{i}>\t70{i}\t{en}" for i, (en, _) in enumerate(NAMES))],
    "bare.tsv": [f"<http://x/{i}>\t{en}\t70{i}" for i, (en, _) in enumerate(NAMES)],
    "named.csv": ["id,code,name", *(f"http://x/{i},70{i},{en}" for i, (en, _) in enumerate(NAMES))],
    "voc.json": [json.dumps({f"http://x/{i}": en for i, (en, _) in enumerate(NAMES)})],
    "voc.jsonl": [
        json.dumps({"uri": f"http://x/{i}", "notation": f"70{i}", "label": en}) for i, (en, _) in enumerate(NAMES)
    ],
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_table_of_names_is_read_by_its_columns(tmp_path: Path, name: str, packed: bool) -> None:
    path = lines(tmp_path / name, *TABLES[name])
    if packed:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / f"{name}.gz"
    dataset, _ = annif(tmp_path, path)
    assert names(dataset) == {"dog", "cat", "horse"}


def test_columns_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path / "v.csv", "uri,alpha,beta", *(f"http://x/{i},70{i},{en}" for i, (en, _) in enumerate(NAMES)))
    with pytest.raises(XMCBenchError, match="found the columns uri, alpha, beta, expected --label-name"):
        annif(tmp_path, path)
    dataset, _ = annif(tmp_path, path, "--label-name", "beta")
    assert names(dataset) == {"dog", "cat", "horse"}


def test_a_column_of_codes_is_no_name(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "v.csv", "uri,label,caption", *(f"http://x/{i},70{i},{en}" for i, (en, _) in enumerate(NAMES))
    )
    with pytest.raises(XMCBenchError, match=r"found codes in the column 'label', .*'caption': --label-name says which"):
        annif(tmp_path, path)


# Annif --------------------------------------------------------------------------------------------------------------


def test_annifs_own_forms_give_one_dataset(tmp_path: Path) -> None:
    vocabulary = lines(tmp_path / "voc.tsv", *TABLES["bare.tsv"])
    own = [(f"text {i}", [f"http://x/{i % 3}", f"http://x/{i % 2}"]) for i in range(30)]
    lines(tmp_path / "a.tsv", *(f"{text}\t{' '.join(f'<{uri}>' for uri in uris)}" for text, uris in own))
    lines(tmp_path / "bare.tsv", *(f"{text}\t{' '.join(uris)}" for text, uris in own))
    lines(tmp_path / "a.csv", "document_id,text,subject_uris", *(f"d,{text},{' '.join(uris)}" for text, uris in own))
    documents = [{"text": text, "subjects": [{"uri": uri} for uri in uris]} for text, uris in own]
    lines(tmp_path / "a.jsonl", *map(json.dumps, documents))
    for folder, ending in (("full", "tsv"), ("keys", "key")):
        (tmp_path / folder).mkdir()
        for i, (text, uris) in enumerate(own):
            (tmp_path / folder / f"{i:02}.txt").write_text(text)
            by_name = [NAMES[int(uri[-1])][0] for uri in uris]
            subjects = (
                by_name if ending == "key" else [f"<{uri}>\t{name}" for uri, name in zip(uris, by_name, strict=True)]
            )
            lines(tmp_path / folder / f"{i:02}.{ending}", *subjects)
    hashes = set()
    for path in ("a.tsv", "bare.tsv", "a.csv", "a.jsonl", "full", "keys"):
        corpus = (tmp_path / path, "--format", "annif", "--label-texts", vocabulary, "--replace")
        hashes.add(imported(*corpus)[0].card.content_hash)
    assert len(hashes) == 1


def test_what_annif_skips_is_skipped_and_counted(tmp_path: Path) -> None:
    vocabulary = lines(tmp_path / "voc.tsv", *TABLES["bare.tsv"])
    corpus = lines(tmp_path / "c.tsv", *CORPUS, "no tab here", "new\t<http://x/0> <http://x/77>")
    options = ("--format", "annif", "--label-texts", vocabulary)
    dataset, said = imported(corpus, *options)
    assert rows(dataset) == 31
    assert "1 of 32 lines have no tab and were skipped, such as 'no tab here'" in said
    assert "1 of 32 pairs have a label that the vocabulary lacks and were skipped, such as 'http://x/77'" in said
    assert "were skipped" in run("show", "own")
    refused(r"c\.tsv: row 31: found no tab", corpus, *options, "--strict", "--replace")


# Options, encodings, layouts ----------------------------------------------------------------------------------------


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    table = lines(tmp_path / "a.tsv", "text\tlabels", *plain_rows(20))
    jsonl = lines(tmp_path / "a.jsonl", *(json.dumps({"text": f"text {i}", "labels": ["a", "b"]}) for i in range(20)))
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(20)], "labels": [["a"]] * 20}), tmp_path / "a.parquet")
    for option, arguments in {
        "--encoding": (tmp_path / "a.parquet", "--encoding", "utf-8"),
        "--separator": (jsonl, "--separator", ","),
        "--quoting": (jsonl, "--quoting", "none"),
        "--language": (table, "--language", "de"),
        "--test-share": (table, "--test", table, "--test-share", "0.5"),
        "--config": (table, "--config", "en"),
        "--strict": (table, "--strict"),
        "--label-name": (table, "--label-name", "x"),
    }.items():
        refused(f"^{option}: has no effect on these files", *arguments)


@pytest.mark.parametrize("place", ["first", "after a megabyte"])
def test_the_first_odd_byte_counts_wherever_it_is(tmp_path: Path, place: str) -> None:
    odd = "Töpferöfen und Gläser\tred".encode("cp1252")
    plain = "\n".join(f"{'word ' * 20}{i}\tred" for i in range(12_000)).encode()
    (tmp_path / "a.tsv").write_bytes(
        b"text\tlabels\n" + (odd + b"\n" + plain if place == "first" else plain + b"\n" + odd)
    )
    dataset, said = imported(tmp_path / "a.tsv")
    assert "Töpferöfen und Gläser" in pairs(dataset)
    assert "read as cp1252, which was guessed, as in 'Töpferöfen und Gläser" in said


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_unicode_in_any_form_is_read(tmp_path: Path, encoding: str) -> None:
    content = "\n".join(["text\tlabels", *(f"Übung {i}\tgrün" for i in range(20))])
    (tmp_path / "a.tsv").write_bytes(content.encode(encoding))
    dataset, _ = imported(tmp_path / "a.tsv")
    assert names(dataset) == {"grün"}
    assert "Übung 3" in pairs(dataset)


def test_a_file_of_two_encodings_is_refused(tmp_path: Path) -> None:
    content = (
        b"text\tlabels\n" + "".join(f"Übung {i}\tred\n" for i in range(20)).encode() + "Übung\tred\n".encode("cp1252")
    )
    (tmp_path / "a.tsv").write_bytes(content)
    refused(r"a\.tsv: line 22: found the byte 0xdc", tmp_path / "a.tsv")


def test_text_that_was_encoded_twice_is_said(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.tsv", "text\tlabels", "größe\tred", *plain_rows(20))
    _, said = imported(path, "--encoding", "cp1252")
    assert "1 of 21 texts seem to be UTF-8 that was read as another encoding" in said


def test_files_of_other_trainers(tmp_path: Path) -> None:
    own = [(f"text {i}", ["red", "blue"][: 1 + i % 2]) for i in range(20)]
    expected = {text: set(labels) for text, labels in own}
    lines(
        tmp_path / "fasttext.txt",
        *(f"{' '.join(f'__label__{each}' for each in labels)} {text}" for text, labels in own),
    )
    lines(tmp_path / "lml.txt", *(f"{i}\t{' '.join(labels)}\t{text}" for i, (text, labels) in enumerate(own)))
    lines(tmp_path / "short.txt", *(f"{' '.join(labels)}\t{text}" for text, labels in own))
    lines(
        tmp_path / "tabs.txt",
        *("\t".join([*(f"__label__{each}" for each in labels), text]) for text, labels in own),
    )
    for name, form in (
        ("fasttext.txt", "fasttext"),
        ("tabs.txt", "fasttext"),
        ("lml.txt", "libmultilabel"),
        ("short.txt", "libmultilabel"),
    ):
        dataset, _ = imported(tmp_path / name, "--format", form, "--replace")
        assert pairs(dataset) == expected


def test_signs_between_labels_that_a_format_does_not_have_are_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.txt", "__label__red, __label__blue text")
    refused("row 1: found '__label__red,', expected labels and text with blanks", path, "--format", "fasttext")
    path = lines(tmp_path / "a.tsv", "text\t<http://x/1>,<http://x/2>")
    refused("found '<http://x/1>,<http://x/2>', expected URIs with blanks between them", path, "--format", "annif")


def test_features_without_texts_say_what_is_needed(tmp_path: Path) -> None:
    bag = ["3 5 2", "0 1:0.5 4:1.0", "0,1 2:0.25", " 3:1.0"]
    refused(
        "found bag-of-words features and no texts; every method here reads texts", lines(tmp_path / "bow.txt", *bag)
    )
    folder = tmp_path / "data" / "bow"
    folder.mkdir(parents=True)
    lines(folder / "train.txt", *bag)
    lines(folder / "test.txt", *bag)
    with pytest.raises(XMCBenchError, match=r"found bag-of-words features in test\.txt and no texts"):
        run("show", "bow")


@pytest.mark.parametrize(
    ("name", "hint"), [("a.xlsx", "save the sheet as CSV UTF-8"), ("a.pkl", "a pickle can run any code")]
)
def test_what_is_no_table_says_which_conversion_is_needed(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    refused(hint, tmp_path / name)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "bool"])
def test_a_column_for_each_label_is_refused_with_the_conversion(tmp_path: Path, kind: str) -> None:
    """With a column of labels that is not there, and with one of the columns of zeros and ones."""
    path = tmp_path / f"a.{kind.replace('bool', 'parquet')}"
    labels = ("art", "law", "pop")
    held = [{"text": f"t {i}"} | {name: i % size == 0 for size, name in enumerate(labels, 2)} for i in range(40)]
    found = [{name: int(value) if value in (0, 1) else value for name, value in row.items()} for row in held]
    if kind == "csv":
        lines(path, "text,art,law,pop", *(",".join(map(str, row.values())) for row in found))
    elif kind == "jsonl":
        lines(path, *map(json.dumps, found))
    else:
        pq.write_table(pa.Table.from_pylist(held if kind == "bool" else found), path)
    mend = r"expected one column of labels, which pandas makes: table\['labels'\] = "
    refused(rf"unknown column 'labels' .*: 3 columns hold zeros and ones, such as 'art' and 'law': {mend}", path)
    refused(mend, path, "--labels", "law")
    if kind != "bool":
        assert imported(path, "--labels", "law", "--yes")[0].card.num_labels == 2


def test_one_column_of_zeros_and_ones_is_one_of_labels(tmp_path: Path) -> None:
    dataset, _ = imported(lines(tmp_path / "a.csv", "text,labels", *(f"t {i},{i % 2}" for i in range(40))))
    assert names(dataset) == {"0", "1"}


# Folders that the library `datasets` wrote ---------------------------------------------------------------------------

CLASSES = ["arts", "music", "law"]


@pytest.mark.parametrize("form", ["saved", "shards", "parquet", "filtered"])
def test_what_the_library_writes_has_its_class_names(tmp_path: Path, form: str) -> None:
    library = pytest.importorskip("datasets", reason="needs datasets")
    classes = library.Sequence(library.ClassLabel(names=CLASSES))
    features = library.Features({"text": library.Value("string"), "labels": classes})
    made = {
        split: {"text": [f"{split} {i}" for i in range(count)], "labels": [[i % 3, (i + 1) % 3] for i in range(count)]}
        for split, count in (("train", 30), ("test", 12))
    }
    parts = {split: library.Dataset.from_dict(rows, features=features) for split, rows in made.items()}
    folder = tmp_path / "repo"
    if form == "parquet":
        (folder / "data").mkdir(parents=True)
        for split, part in parts.items():
            part.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    else:
        whole = library.DatasetDict(parts)
        whole = whole.filter(lambda row: 0 in row["labels"]) if form == "filtered" else whole
        whole.save_to_disk(folder, num_shards={"train": 3, "test": 1} if form == "shards" else None)
    dataset, _ = imported(folder, "--format", "hf")
    assert rows(dataset) == (28 if form == "filtered" else 42)
    assert pairs(dataset)["train 0"] == {"arts", "music"}
    if form == "shards":
        (folder / "train" / "data-00001-of-00003.arrow").unlink()
        again = (folder, "--format", "hf", "--replace")
        refused("1 of 3 files of the split are missing: data-00001-of-00003.arrow", *again)
        assert rows(imported(*again, "--yes")[0]) == 32


def test_a_saved_dataset_without_splits_says_how_to_make_them(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    table = pa.table({"text": ["a"], "labels": [["x"]]})
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    refused(r"found no train split .*: none.*`dataset.train_test_split\(0.2\).save_to_disk", folder, "--format", "hf")


def test_an_excel_file_says_its_delimiter(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.csv", "sep=;", "text;labels", *(f"a, b {i};red" for i in range(20)))
    dataset, _ = imported(path)
    assert "a, b 3" in pairs(dataset)


def test_files_that_are_not_read_are_shown(tmp_path: Path) -> None:
    imported(lines(tmp_path / "a.tsv", "text\tlabels", *plain_rows(20)))
    shutil.copy(tmp_path / "a.tsv", tmp_path / "data" / "own" / "trn_X_Xf.txt")
    assert "1 files were not read: trn_X_Xf.txt" in run("show", "own")


def test_a_report_is_on_the_datasheet(tmp_path: Path) -> None:
    _, said = imported(lines(tmp_path / "a.tsv", "text\tlabels", *plain_rows(20), "x\tRed", "y\t7"))
    sheet = (tmp_path / "data" / "own" / "datasheet.md").read_text()
    found = said.splitlines()[1:]
    assert any("differ from another one in case" in line for line in found)
    assert all(f"- {line}" in sheet for line in found)


def test_what_a_user_named_is_no_markup_on_the_datasheet() -> None:
    sheet = datasheet("a_b*", {"text": "x|y <b>"}, [])
    assert "# a\\_b\\*\n" in sheet
    assert "| text | x\\|y \\<b\\> |" in sheet
