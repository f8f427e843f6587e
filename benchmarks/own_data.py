"""Rows for `xmcbench datasets import`: two datasets that anybody can make, of other kinds than the catalogue has.

python benchmarks/own_data.py calls rows.jsonl                       # a docstring, and the names that its code calls
python benchmarks/own_data.py iconclass rows.jsonl --clone CLONE     # what a picture shows, and its keywords
"""

from __future__ import annotations

import argparse
import ast
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from xmcbench.errors import XMCBenchError

Row = tuple[str, set[str]]  # text, labels
LEAST = {"calls": 3, "iconclass": 1}  # rows that have a label, else it is none
PARAGRAPH = "\n\n"
PACKAGES = ["numpy", "scipy", "sklearn", "transformers"]


def calls(package: str) -> Iterator[Row]:
    """Of each function of an installed package: its name with its docstring's first paragraph, and what it calls."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise XMCBenchError(f"{package}: not found, expected an installed package")
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in strings
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
                called = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
                names = {getattr(each, "attr", getattr(each, "id", "")) for each in called} - {""}
                yield f"{node.name}: {' '.join(docstring.split(PARAGRAPH)[0].split())}", names


def iconclass(clone: Path) -> Iterator[Row]:
    """Of each notation of a clone of github.com/iconclass/data: its English text, and its English keywords."""
    keywords = defaultdict(set)
    for notation, keyword in _fields(clone / "kw" / "en"):
        keywords[notation].add(keyword)
    for notation, text in _fields(clone / "txt" / "en"):
        yield text, keywords[notation]


def _fields(folder: Path) -> Iterator[tuple[str, str]]:
    """The two fields of each line of the files with notations."""
    paths = sorted(folder.glob("*_en_[0-9]*.txt"))
    if not paths:
        raise XMCBenchError(f"{folder}: found no file, expected a clone of github.com/iconclass/data")
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            notation, found, value = line.partition("|")
            if found:
                yield notation, value.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calls", "iconclass"])
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="of calls; default: %(default)s")
    parser.add_argument("--clone", type=Path, default=Path("data"), help="of iconclass")
    asked = parser.parse_args()
    packages = (row for name in asked.packages for row in calls(name))
    rows = list(iconclass(asked.clone) if asked.what == "iconclass" else packages)
    frequency = Counter(label for _, labels in rows for label in labels)
    kept = ((text, sorted(own for own in labels if frequency[own] >= LEAST[asked.what])) for text, labels in rows)
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in kept if text and labels]
    asked.out.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print(f"{asked.out}: {len(lines):,} rows")


if __name__ == "__main__":
    main()
