"""Files of bag-of-words features, which hold no texts: they are told from files of texts, and say what is missing."""

from __future__ import annotations

import re
from pathlib import Path

from xmcbench.data.text_files import open_binary
from xmcbench.errors import XMCBenchError

HEADER = re.compile(rb"\s*\d+ \d+(?: \d+)?\s*\r?\n?")
ROW = re.compile(rb"\s*(?:\d+(?:,\d+)*)?(?:\s+\d+:[-+0-9.eE]+)+\s*")
FEATURE_FILES = ("trn_X_Xf.txt", "tst_X_Xf.txt", "X.trn.npz", "X.tst.npz", "Xf.txt")
NEEDED = (
    "every method here reads texts: expected them in trn_X.txt and tst_X.txt, a text a line in the same order (the "
    "repository has such files, named raw text, for most of its datasets)"
)


def check_has_texts(path: Path) -> None:
    """Raise XMCBenchError where `path`, a file or a folder of files, holds features in place of texts."""
    if path.is_dir():
        names = {entry.name.removesuffix(".gz"): entry for entry in path.iterdir() if entry.is_file()}
        features = [names[name] for name in FEATURE_FILES if name in names]
        features += [
            entry for name, entry in sorted(names.items()) if name.endswith((".txt", ".svm")) and _is_rows(entry)
        ]
        if features:
            raise XMCBenchError(f"{path}: found bag-of-words features in {features[0].name} and no texts; {NEEDED}")
    elif path.is_file() and _is_rows(path):
        raise XMCBenchError(f"{path}: found bag-of-words features and no texts; {NEEDED}")


def _is_rows(path: Path) -> bool:
    """Whether the first lines are `label,label feature:value ...`, after a header of sizes or without one."""
    try:
        with open_binary(path) as file:
            lines = [file.readline(1 << 16) for _ in range(4)]
    except (OSError, EOFError):
        return False
    rows = lines[1:] if HEADER.fullmatch(lines[0]) else lines
    filled = [line for line in rows if line.strip()]
    return bool(filled) and all(ROW.match(line) for line in filled)
