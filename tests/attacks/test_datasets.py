"""Hostile datasets: each is refused in one line that names file and line without much memory."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from xmcbench.data.prepared import load
from xmcbench.errors import XMCBenchError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound dataset of three queries, two labels and one test query."""
    place = tmp_path / "data" / "own"
    place.mkdir(parents=True)
    for name, content in {
        "trn_X.txt": "one\ntwo\nthree\n", "trn_X_Y.txt": "3 2\n0:1\n1:1\n1:1\n",
        "tst_X.txt": "one\n", "tst_X_Y.txt": "1 2\n0:1\n",
        "Y.txt": "first\nsecond\n",
    }.items():  # fmt: skip
        (place / name).write_text(content)
    return place


def nuls(path: Path) -> None:
    """Two gigabytes of NULs in a gzip file of two megabytes: members of 64 MB, one after the other."""
    member = gzip.compress(bytes(1 << 26), 1)
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.gz").write_bytes(member * 32)


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


MANY_DIGITS = "1" * 3_000_000
HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "three million digits": ("trn_X_Y.txt", text(f"3 2\n0:{MANY_DIGITS}\n"), "found a value of 3,000,000"),
    "label of many digits": ("trn_X_Y.txt", text(f"3 2\n{MANY_DIGITS}:1\n1:1\n1:1\n"), "line 2: found '1111"),
    "header of many digits": ("trn_X_Y.txt", text(f"{MANY_DIGITS} 2\n0:1\n"), "line 1: found '1111"),
    "header of many rows": ("trn_X_Y.txt", text(f"{10**17} 2\n0:1\n"), f"found a header of {10**17} rows"),
    "header of many labels": ("trn_X_Y.txt", text(f"3 {10**17}\n0:1\n1:1\n1:1\n"), f"{10**17} labels, expected"),
    "line of 20 MB": ("trn_X.txt", text("x" * 20_000_000 + "\ntwo\n"), "line 1: found a line of more than 16,777"),
    "gzip of NULs": ("trn_X.txt", nuls, "line 1: found a line of more than 16,777,216 bytes"),
    "NULs as labels": ("Y.txt", nuls, "line 1: found a line of more than 16,777,216 bytes"),
    "infinite propensity": ("card.yaml", text("propensity_a: .inf\n"), "card.yaml:1: propensity_a: found '.inf'"),
    "no propensity": ("card.yaml", text("propensity_a: .nan\n"), "card.yaml:1: propensity_a: found '.nan'"),
    "folder as card": ("card.yaml", lambda path: path.mkdir(), "card.yaml: not a regular file"),
    "link to nothing as card": ("card.yaml", lambda path: path.symlink_to("gone"), "card.yaml: cannot read: No such"),
    "folder of ignored pairs": ("filter_labels_test.txt", lambda path: path.mkdir(), "test.txt: not a regular file"),
    "pipe of ignored pairs": ("filter_labels_test.txt", os.mkfifo, "filter_labels_test.txt: not a regular file"),
    "negative length": ("card.yaml", text("max_length: -5\n"), "card.yaml:1: max_length: found -5"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_dataset_is_refused_in_one_line(folder: Path, case: str) -> None:
    name, write, message = HOSTILE[case]
    assert len(load("own", folder.parent, folder.parent / "cache").train.texts) == 3
    write(folder / name)
    with pytest.raises(XMCBenchError) as caught:
        load("own", folder.parent, folder.parent / "cache")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_dataset_of_one_training_query_is_refused_before_training(folder: Path) -> None:
    (folder / "trn_X.txt").write_text("one\n")
    (folder / "trn_X_Y.txt").write_text("1 2\n0:1\n")
    with pytest.raises(XMCBenchError, match="own: found 1 training queries, expected at least 3"):
        load("own", folder.parent, folder.parent / "cache")
