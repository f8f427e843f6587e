"""Import of a clone of spack's packages: from a package to those that it depends on (docs/datasheets.md).

Each package has a `package.py`, which is parsed, never run: the description is the docstring of its class, dependencies
are the names in calls of `depends_on`, whatever their versions and conditions. A name that is put together at run time
is left out; a virtual package, such as `mpi`, has only its name as text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from xmcbench.data.formats import CARD_FILE, write_json_layout
from xmcbench.data.importer import Imported, Importer
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.debian import in_test

PACKAGES = Path("repos/spack_repo/builtin/packages")
NAME = re.compile(r"[a-z0-9_][a-z0-9_-]*")
CARD = """\
source: https://github.com/spack/spack-packages
licence: Apache-2.0 or MIT
max_length: 128
max_label_length: 64
"""


class Spack(Importer):
    """A clone of spack-packages."""

    name = "spack"
    summary = "a clone of spack's packages: from a package to those that it depends on"

    def write(self, path: Path, folder: Path) -> Imported:
        """See `Importer`."""
        return import_spack(path, folder)


def import_spack(clone: Path, folder: Path) -> Imported:
    """Write the dataset of the clone into `folder`, which is empty or is made.

    Raises XMCBenchError that names the file of a package that is no Python, or the folder that is missing.
    """
    paths = sorted((clone / PACKAGES).glob("*/package.py"))
    if not paths:
        raise XMCBenchError(f"{clone / PACKAGES}: found no package, expected a clone of spack-packages")
    found = {package_name(path.parent.name): read_package(path) for path in paths}
    needs = {name: needed - {name} for name, (_, needed) in found.items() if needed - {name}}
    labels = sorted(set().union(*needs.values()))
    ids = {label: number for number, label in enumerate(labels)}
    texts = {name: f"{name}: {text}" if text else name for name, (text, _) in found.items()}
    train, test = ([name for name in sorted(needs) if in_test(name) == side] for side in (False, True))
    if not (train and test):
        raise XMCBenchError(
            f"{clone}: found {len(train)} training and {len(test)} test packages, expected some of each"
        )

    lines = {
        name: {"uid": name, "title": texts[name], "target_ind": sorted(ids[label] for label in needed)}
        for name, needed in needs.items()
    }
    own = {
        f"filter_labels_{split}.txt": "".join(f"{row} {ids[name]}\n" for row, name in enumerate(names) if name in ids)
        for split, names in (("train", train), ("test", test))
    }
    write_json_layout(
        folder,
        (lines[name] for name in train),
        (lines[name] for name in test),
        ({"uid": label, "title": texts.get(label, label)} for label in labels),
        {CARD_FILE: CARD, **own},
    )
    return Imported(train=len(train), test=len(test), labels=len(labels))


def package_name(folder: str) -> str:
    """The name of the package in a folder.

    >>> package_name("py_numpy"), package_name("_3dtk")
    ('py-numpy', '3dtk')
    """
    return folder.lstrip("_").replace("_", "-")


def read_package(path: Path) -> tuple[str, set[str]]:
    """Description and dependencies of the package in a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of invalid escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        raise XMCBenchError(f"{path}: {error}, expected Python") from error
    texts = (ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef))
    return " ".join(next(filter(None, texts), "").split()), set(_dependencies(tree))


def _dependencies(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="depends_on"), args=[first, *_]):
                spec, whole = _start(first)
                name = NAME.match(spec)
                if name and (whole or name.end() < len(spec)):
                    yield name[0]


def _start(spec: ast.expr) -> tuple[str, bool]:
    """The text with which a spec begins, as far as it is written out, and whether that is all of it."""
    match spec:
        case ast.Constant(value=str(text)):
            return text, True
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first):
            return _start(first)[0], False
        case ast.Call(func=ast.Attribute(attr="format", value=first)):
            return _start(first)[0].partition("{")[0], False
    return "", False
