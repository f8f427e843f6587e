"""Writes a dataset in the JSON layout from objects that are already numbered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Lines = Iterable[Mapping[str, Any]]


def write_json_layout(folder: Path, train: Lines, test: Lines, labels: Lines, more: Mapping[str, str]) -> None:
    """Write a dataset into `folder`; `more` are the contents of further files by name, of the card among them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("trn", train), ("tst", test), ("lbl", labels)):
        with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    for name, content in more.items():
        (folder / name).write_text(content, encoding="utf-8")
    folder.chmod(0o755)
