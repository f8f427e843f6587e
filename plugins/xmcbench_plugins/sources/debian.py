"""`debian-packages`: the dependencies of packages, from the apt index of the machine or a Packages file.

docs/datasets.md says what is a query and what a label. Each alternative is a label, versions and architectures are
dropped, and only the first of several versions of a package is used.
"""

from __future__ import annotations

import re
import subprocess
from hashlib import sha256
from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset, Split
from xmcbench.data.source import Draft, Source, stamp
from xmcbench.data.text_files import Block, check_utf8, open_binary, pairs_csr
from xmcbench.data.texts import PackedTexts
from xmcbench.errors import XMCBenchError

NAME = "debian-packages"
FILES = ("Packages", "Packages.gz", "Packages.xz")
APT_LISTS = Path("/var/lib/apt/lists")
POCKET = re.compile(
    r"_dists_[^_]*-(security|updates|backports|proposed)"
)  # in the name of an index: what follows a release
APT_HELPER = Path("/usr/lib/apt/apt-helper")  # reads an index in any compression that apt uses
RELATIONS = (b"Depends", b"Recommends", b"Suggests", b"Enhances")
TEST_OF_TEN = 2  # of ten hash classes of names, the number in the test split

# A field is a line "Name: value"; lines that start with white space continue it.
FIELD = re.compile(
    rb"^(Package|Description|Depends|Recommends|Suggests|Enhances):[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE
)
RELATED_NAME = re.compile(rb"(?:^|[,|])\s*([a-z0-9][a-z0-9+.\-]*)")


class DebianPackages(Source):
    """The packages in `<data directory>/debian-packages/Packages[.gz|.xz]`, else those in apt's index."""

    draft = Draft(name=NAME, source="the machine's apt index", licence="descriptions: those of the packages")
    of_machine = True

    def missing(self, data_dir: Path) -> str | None:
        if self._paths(data_dir):
            return None
        return (
            f"dataset {NAME}: found neither an apt index (apt-get update makes one) nor a Packages file, expected "
            f"{data_dir / NAME}/Packages, .gz or .xz, such as http://deb.debian.org/debian/dists/bookworm/main/"
            "binary-amd64/Packages.xz"
        )

    def fingerprint(self, data_dir: Path) -> str:
        return "debian 1\n" + stamp(self._paths(data_dir))

    def read(self, data_dir: Path) -> Dataset:
        paths = self._paths(data_dir)
        return build(b"\n\n".join(_content(path) for path in paths), ", ".join(map(str, paths)), self.draft)

    def _paths(self, data_dir: Path) -> list[Path]:
        given = [path for name in FILES if (path := data_dir / NAME / name).is_file()]
        if len(given) > 1:
            names = " and ".join(path.name for path in given)
            raise XMCBenchError(f"{data_dir / NAME}: found {names}, expected one of them")
        return given or _apt_index()


def build(index: bytes, where: str, draft: Draft) -> Dataset:
    """The dataset of the Packages file whose content is `index`."""
    descriptions, relations = parse(index, where)
    names = sorted(descriptions)
    index_of = {name: i for i, name in enumerate(names)}
    # One Python loop over packages; everything below it is numpy.
    related = [{index_of[n] for n in relations[name] if n in index_of} - {index_of[name]} for name in names]
    counts = np.array([len(packages) for packages in related])
    columns = np.array([column for packages in related for column in sorted(packages)], np.int64)
    label_packages, labels = np.unique(columns, return_inverse=True)
    if not len(labels):
        raise XMCBenchError(f"{where}: found no package with a dependency, expected a Debian Packages file")
    texts = PackedTexts.of(f"{name}: {descriptions[name]}" for name in names)
    targets = pairs_csr(np.repeat(np.arange(len(names)), counts), labels, (len(names), len(label_packages)))
    own = pairs_csr(label_packages, np.arange(len(label_packages)), (len(names), len(label_packages)))
    is_test = np.array([in_test(name) for name in names])
    train, test = np.flatnonzero(~is_test & (counts > 0)), np.flatnonzero(is_test & (counts > 0))
    if not len(train) or not len(test):
        raise XMCBenchError(
            f"{where}: found {len(train)} training and {len(test)} test queries, expected at least one of each"
        )
    card = draft.card(len(train), len(test), len(label_packages), where)
    splits = Split(texts.take(train), targets[train]), Split(texts.take(test), targets[test])
    return Dataset(card, *splits, texts.take(label_packages), own[train], own[test])


def in_test(name: str) -> bool:
    """Whether a package is in the test split, by the hash of its name."""
    return int.from_bytes(sha256(name.encode()).digest(), "big") % 10 < TEST_OF_TEN


def parse(index: bytes, where: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The one-line description of each package, and the names in its relation fields."""
    check_utf8(Block(where, np.frombuffer(index, np.uint8), first_line=1, offset=0))
    descriptions: dict[str, str] = {}
    relations: dict[str, list[str]] = {}
    for stanza in re.split(rb"\n[ \t\r]*\n", index):
        fields = dict(FIELD.findall(stanza))
        if b"Package" not in fields:
            if stanza.strip():
                found = repr(stanza.strip()[:40].decode(errors="replace"))
                raise XMCBenchError(f"{where}: found an entry without a Package field ({found}), expected one in each")
            continue
        name = fields[b"Package"].decode().strip()
        if name in descriptions:
            continue
        descriptions[name] = fields.get(b"Description", b"").decode().split("\n")[0].strip()
        relations[name] = [n.decode() for key in RELATIONS for n in RELATED_NAME.findall(fields.get(key, b""))]
    return descriptions, relations


def _apt_index() -> list[Path]:
    """The Packages files of a release that apt has downloaded; empty on a machine without apt.

    Updates after the release are left out, so that the dataset is the same on every machine with that release.
    """
    if not APT_HELPER.is_file():
        return []
    indices = sorted(APT_LISTS.glob("*_Packages*"))
    return [path for path in indices if not POCKET.search(path.name)] or indices


def _content(path: Path) -> bytes:
    if path.name not in FILES:
        answer = subprocess.run([str(APT_HELPER), "cat-file", str(path)], capture_output=True, check=False)
        if answer.returncode:
            reason = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise XMCBenchError(f"{path}: cannot be read by apt-helper ({''.join(reason)})")
        return answer.stdout
    try:
        with open_binary(path) as file:
            return file.read()
    except (OSError, EOFError, ValueError) as error:
        raise XMCBenchError(f"{path}: cannot be read ({error}), expected a whole Packages file") from error
