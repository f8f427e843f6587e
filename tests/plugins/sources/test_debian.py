"""Packages files: what is a query, what a label, and what is neither."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from xmcbench.data import load
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources import debian
from xmcbench_plugins.sources.debian import DebianPackages, build, parse

INDEX = b"""Package: editor
Version: 1
Description: edits text
 and this is the long description
Depends: libc6 (>= 2.36), fonts:any | fonts-extra [amd64],
 virtual-thing
Recommends: editor-doc, editor

Package: editor
Version: 0
Description: an older editor
Depends: nothing-of-it

Package: libc6
Description: C library
Description-md5: 0123

Package: fonts
Description: letters
Suggests: editor
Pre-Depends: libc6

Package: fonts-extra
Description: more lettr\xc3\xa9es
Enhances: fonts

Package: editor-doc
Description: how to edit
Depends: editor (= 1), fonts
"""


@pytest.fixture
def no_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_apt_index", list)


@pytest.fixture
def all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few packages, half of all names go to the test split."""
    monkeypatch.setattr(debian, "TEST_OF_TEN", 5)


def test_fields_are_parsed() -> None:
    descriptions, relations = parse(INDEX, "Packages")
    assert descriptions["editor"] == "edits text"
    assert descriptions["fonts-extra"] == "more lettrées"
    assert relations["editor"] == ["libc6", "fonts", "fonts-extra", "virtual-thing", "editor-doc", "editor"]
    assert relations["fonts"] == ["editor"]
    assert relations["libc6"] == []


@pytest.mark.usefixtures("all_names")
def test_queries_and_labels() -> None:
    dataset = build(INDEX, "Packages", DebianPackages.draft)
    labels = [text.split(":")[0] for text in dataset.label_texts]
    assert labels == ["editor", "editor-doc", "fonts", "fonts-extra", "libc6"]
    found = {}
    for split, ignore in ((dataset.train, dataset.ignore_train), (dataset.test, dataset.ignore_test)):
        for i, text in enumerate(split.texts):
            own = [labels[j] for j in ignore[[i]].indices]
            assert own == [text.split(":")[0]]
            found[text] = [labels[j] for j in split.targets[[i]].indices]
    assert found == {
        "editor: edits text": ["editor-doc", "fonts", "fonts-extra", "libc6"],
        "editor-doc: how to edit": ["editor", "fonts"],
        "fonts: letters": ["editor"],
        "fonts-extra: more lettrées": ["fonts"],
    }
    assert dataset.card.num_train + dataset.card.num_test == 4


@pytest.mark.usefixtures("no_apt", "all_names")
@pytest.mark.parametrize(
    ("name", "compress"), [("Packages", bytes), ("Packages.gz", gzip.compress), ("Packages.xz", lzma.compress)]
)
def test_a_packages_file_by_path(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    source = DebianPackages()
    assert "apt-get update" in str(source.missing(tmp_path))
    (tmp_path / "debian-packages").mkdir()
    (tmp_path / "debian-packages" / name).write_bytes(compress(INDEX))
    assert source.missing(tmp_path) is None
    dataset = load("debian-packages", tmp_path, tmp_path / "cache")
    assert len(dataset.label_texts) == 5


@pytest.mark.usefixtures("no_apt")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Package: a\nDescription: caf\xe9\n", "line 2: found byte 0xe9 at offset 27, expected UTF-8"),
        (b"Version: 1\n\nPackage: a\n", "an entry without a Package field"),
        (b"Package: a\n", "found no package with a dependency"),
        (b"", "found no package with a dependency"),
    ],
)
def test_a_bad_packages_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "debian-packages").mkdir()
    (tmp_path / "debian-packages" / "Packages").write_bytes(content)
    with pytest.raises(XMCBenchError, match=message):
        load("debian-packages", tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(("name", "compress"), [("Packages.gz", gzip.compress), ("Packages.xz", lzma.compress)])
def test_a_truncated_packages_file_is_one_line(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "debian-packages").mkdir()
    (tmp_path / "debian-packages" / name).write_bytes(compress(INDEX)[:-8])
    with pytest.raises(XMCBenchError, match=rf"{name}: cannot be read .*expected a whole Packages file"):
        load("debian-packages", tmp_path, tmp_path / "cache")


def test_an_apt_index_without_updates_after_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that also lists security updates has the dataset of one that does not."""
    release = tmp_path / "deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages.lz4"
    pockets = [
        tmp_path / "deb.debian.org_debian-security_dists_bookworm-security_main_binary-amd64_Packages.lz4",
        tmp_path / "deb.debian.org_debian_dists_bookworm-updates_main_binary-amd64_Packages.lz4",
    ]
    helper = tmp_path / "apt-helper"
    for path in (release, helper, *pockets):
        path.touch()
    monkeypatch.setattr(debian, "APT_LISTS", tmp_path)
    monkeypatch.setattr(debian, "APT_HELPER", helper)
    assert debian._apt_index() == [release]
    release.unlink()
    assert debian._apt_index() == sorted(pockets), "all there is"
