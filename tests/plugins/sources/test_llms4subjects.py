"""A clone of the LLMs4Subjects collection becomes a dataset; a damaged record is one line with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.llms4subjects import RECORDS, import_llms4subjects

BROOKS, RIVERS, SEAS = "gnd:1-1", "gnd:2-2", "gnd:3-3"
NAMES = {BROOKS: "Bach", RIVERS: "Fluss  (Geographie)", SEAS: "Meer"}


def write(clone: Path, place: str, title: Any, subjects: list[str], abstract: Any = "Text") -> Path:
    """A record at `place`, as `train/Book/de/3A1`, with the nodes that a record of the collection has."""
    named = [{"@id": subject, "sameAs": NAMES[subject]} for subject in subjects]
    author = {"@id": "gnd:9-9", "sameAs": ["Ann", "A."]}
    listed: Any = [{"@id": subject} for subject in subjects]
    record = {"@id": "https://x", "title": title, "abstract": abstract, "creator": "gnd:9-9"}
    record["dcterms:subject"] = listed if len(listed) > 1 else listed[0]
    path = clone / RECORDS / f"{place}.jsonld"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"@graph": [*named, author, record], "@context": {}}))
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    write(clone, "train/Book/de/3A2", "Am  Fluss", [RIVERS, BROOKS])
    write(clone, "dev/Article/en/3A1", ["At the brook", "Am Bach"], [BROOKS], abstract=["One", "x" * 2000])
    write(clone, "train/Book/de/3A3", "AN DER See", [SEAS])  # the test record below in another edition
    write(clone, "test/gold-standard-testset/Book/de/3A5", "An der See", [SEAS, RIVERS])
    write(clone, "test/gold-standard-testset/Book/de/3A4", "Tiefe", [SEAS])
    return clone


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_official_parts_become_splits_without_what_would_leak(clone: Path, tmp_path: Path) -> None:
    report = import_llms4subjects(clone, tmp_path / "made")
    assert (report.train, report.test, report.labels, report.shared) == (2, 1, 2, 1)
    labels = lines(tmp_path / "made" / "lbl.json")
    assert labels == [
        {"uid": BROOKS, "title": "Bach", "content": ""},
        {"uid": RIVERS, "title": "Fluss (Geographie)", "content": ""},
    ]
    first, second = lines(tmp_path / "made" / "trn.json")
    assert (first["uid"], first["title"], first["target_ind"]) == ("3A1", "At the brook Am Bach", [0])
    assert first["content"] == ("One " + "x" * 2000)[:1500]
    assert second == {
        "uid": "3A2", "title": "Am Fluss", "content": "Text", "target_ind": [0, 1], "target_rel": [1.0, 1.0]
    }  # fmt: skip
    (tested,) = lines(tmp_path / "made" / "tst.json")  # 3A4 has no subject that training has
    assert (tested["uid"], tested["target_ind"]) == ("3A5", [1])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"@graph": []}', "expected a JSON-LD graph with one record"),
        ('{"@graph": [{"title": 5}]}', "TypeError"),
        ('{"@graph": [{"title": "a", "dcterms:subject": [{"id": "gnd:1"}]}]}', "KeyError: '@id'"),
        ('{"@graph": ["title"]}', "AttributeError"),
    ],
)
def test_a_damaged_record_is_named(clone: Path, tmp_path: Path, content: str, problem: str) -> None:
    damaged = write(clone, "train/Book/de/3A7", "x", [SEAS])
    damaged.write_text(content)
    with pytest.raises(XMCBenchError, match=r"3A7\.jsonld: ") as raised:
        import_llms4subjects(clone, tmp_path / "made")
    assert problem in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_what_is_no_clone_and_what_has_no_name_are_told(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match=r"gold-standard-testset: found no \.jsonld file, expected a clone"):
        import_llms4subjects(tmp_path, tmp_path / "made")
    path = clone / RECORDS / "train/Book/de/3A2.jsonld"
    path.write_text(path.read_text().replace('"sameAs": "Fluss', '"also": "Fluss'))
    with pytest.raises(XMCBenchError, match="no record names the subject gnd:2-2"):
        import_llms4subjects(clone, tmp_path / "made")
