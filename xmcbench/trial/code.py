"""The identity of a program: a digest of what its modules do. Comments, formatting and names of files leave it alone.

A digest covers the packages that a plugin is written in and each module that these import, directly or through others,
unless it is in the standard library, in xmcbench or in an installed distribution. Of distributions beyond those that
xmcbench needs the digest has names and versions. The code of xmcbench itself is known by the versions in
`xmcbench/trial/versions.py`.

A module enters as its syntax tree without docstrings, positions and what only type checkers read. Where it imports
another module of the program, the digest of that module stands in place of its name: a file that moved, with the
imports that name it, is the same program. Other files beside a package's modules enter as they are.

Imports are read, not run: a module whose name is computed while the plugin runs is not found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from xmcbench.plugins.registry import FIRST_PARTY, OWN

INSTALLED = ("site-packages", "dist-packages")  # folders of distributions; what lies elsewhere may change at any time
# Modules of the distributions that xmcbench depends on: provenance has the versions that matter.
NEEDED = {
    *("charset_normalizer", "filelock", "huggingface_hub", "jinja2", "lazy_loader", "numpy", "platformdirs", "pluggy"),
    *("psutil", "pydantic", "yaml", "rich", "safetensors", "sklearn", "scipy", "sparse_dot_topn", "tabulate"),
    *("threadpoolctl", "tokenizers", "torch", "transformers", "typer", "typing_extensions", "xxhash"),
}
NO_CODE = frozenset({".py", ".md", ".rst", ".pyc", ".pyi"})  # files beside modules of which no result depends
LARGEST_FILE = 1 << 24  # bytes; a larger file beside modules enters by its size alone
LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})  # fields that say nothing that others do not
IMPORTERS = ("import_module", "__import__")  # functions whose first argument is a module's name


@dataclass(frozen=True)
class Code:
    """A program: the files of its modules, and its digest."""

    files: tuple[Path, ...]
    digest: str


class _Import(NamedTuple):
    """An import in a module's description, where digests of modules of the program stand in place of their names."""

    source: str  # absolute name of a module
    within: str = ""  # what is imported from it, itself or a module

    @property
    def name(self) -> str:
        return f"{self.source}.{self.within}" if self.within else self.source

    def described(self, alone: Mapping[str, str]) -> str:
        """`alone` has the digests of the program's modules. All of xmcbench is one module, as its files may move."""
        source = OWN if self.source.partition(".")[0] == OWN else self.source
        return alone.get(self.name) or f"{alone.get(self.source, source)} {self.within}"


@dataclass(frozen=True)
class _Module:
    name: str
    path: Path | None  # None for a text
    parts: tuple[str | _Import, ...]  # its syntax tree; empty for a module that does nothing

    def digest(self, alone: Mapping[str, str]) -> str:
        """The digest of the module; `alone` has those of other modules of the program, each without its imports."""
        parts = (part if isinstance(part, str) else part.described(alone) for part in self.parts)
        return sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def code_of(packages: Sequence[str]) -> Code:
    """The program of imported packages, or modules, as its files were when this process first asked."""
    return _code_at(tuple((package, str(sys.modules[package].__file__)) for package in packages))


@cache
def _code_at(places: tuple[tuple[str, str], ...]) -> Code:
    """The program of packages, each with the file that it was imported from."""
    packages = [package for package, _ in places]
    data = [_file_digest(path) for package in packages for path in _data_of(package)]
    return _code([module for package in packages for module in _modules_of(package)], data)


@cache
def code_of_source(source: str) -> Code:
    """The program of a text, as of the cells of a notebook, and of the modules that it imports."""
    return _code([_parsed("__main__", None, "", source.encode())], [])


def _code(roots: Sequence[_Module], data: Sequence[str]) -> Code:
    known, versions = {module.name: module for module in roots}, set[str]()
    waiting = list(roots)
    while waiting:
        for name in {part.name for part in waiting.pop().parts if isinstance(part, _Import)}:
            home = _home(name)
            if isinstance(home, str):
                versions.add(home)
            elif home and home[0] not in known:
                known[home[0]] = _read(*home)
                waiting.append(known[home[0]])
    alone = {name: module.digest({}) for name, module in known.items()}
    modules = (module.digest(alone) for module in known.values() if module.parts)
    files = {module.path for module in known.values() if module.path}
    parts = [*sorted(modules), *sorted(data), *sorted(versions)]
    return Code(tuple(sorted(files)), sha256("\n".join(parts).encode()).hexdigest())


def _modules_of(package: str) -> Iterator[_Module]:
    """The modules in the folders of an imported package, or an imported module."""
    imported = sys.modules[package]
    folders = [Path(folder) for folder in getattr(imported, "__path__", ())]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            own = parts[:-1] if parts[-1] == "__init__" else parts
            yield _read(".".join((package, *own)), path)
    if not folders and imported.__file__:
        yield _read(package, Path(imported.__file__))


def _data_of(package: str) -> Iterator[Path]:
    """The files beside the modules of an imported package that are no modules, as prompts and compiled code."""
    for folder in map(Path, getattr(sys.modules[package], "__path__", ())):
        for init in folder.rglob("__init__.py"):
            yield from (path for path in init.parent.iterdir() if path.suffix not in NO_CODE and path.is_file())


def _file_digest(path: Path) -> str:
    size = path.stat().st_size
    return sha256(path.read_bytes()).hexdigest() if size <= LARGEST_FILE else f"{size} bytes"


def _read(name: str, path: Path) -> _Module:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _parsed(name, path, package, path.read_bytes())


def _parsed(name: str, path: Path | None, package: str, content: bytes) -> _Module:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # such as a template, or compiled code
        return _Module(name, path, (sha256(content).hexdigest(),))
    idle = all(map(_is_idle, tree.body))
    return _Module(name, path, () if idle else tuple(_described(tree, package)))


@cache
def _home(name: str) -> tuple[str, Path] | str | None:
    """The name and file of the module that an absolute name is, or is in; of an installed one its distribution.

    None for the standard library, xmcbench, what it depends on, and names that nothing is found for.
    """
    top, *rest = name.split(".")
    if not top or top == OWN or top in NEEDED or top in sys.stdlib_module_names:
        return None
    try:
        spec = getattr(sys.modules.get(top), "__spec__", None) or find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    path = Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    where = path or next(iter(folders), None)
    if where is None:
        return None
    if top != FIRST_PARTY and any(part in INSTALLED for part in where.parts):
        return _distribution(top, where)
    return _inside(top, path, folders, rest)


def _inside(name: str, path: Path | None, folders: list[Path], parts: Sequence[str]) -> tuple[str, Path] | None:
    """The module that `parts` lead to from the package `name`, in `folders`; the last one that is there."""
    for part in parts:
        packages = [file for folder in folders if (file := folder / part / "__init__.py").is_file()]
        modules = [file for folder in folders if (file := folder / f"{part}.py").is_file()]
        spaces = [space for folder in folders if (space := folder / part).is_dir()]
        if not (packages or modules or spaces):
            break
        name, path = f"{name}.{part}", next(iter((*packages, *modules)), None)
        folders = [packages[0].parent] if packages else [] if modules else spaces
    return (name, path) if path else None


@cache
def _distribution(top: str, where: Path) -> str:
    """The name and version of the distribution that installed a module which lies at `where`."""
    try:
        return _called(distribution(top))
    except PackageNotFoundError:
        pass
    at = next(folder for folder in where.parents if folder.name in INSTALLED)
    for found in distributions(path=[str(at)]):  # called otherwise than its module, as pyyaml is
        listed = "\n" + (found.read_text("RECORD") or "")
        if f"\n{top}/" in listed or f"\n{top}.py," in listed:
            return _called(found)
    return f"{top} of no distribution"


def _called(found: Distribution) -> str:
    """Name and version, without what tells builds of a version apart, as in 2.13.0+cpu."""
    return f"{found.name} {found.version.partition('+')[0]}"


def _described(tree: ast.AST, package: str) -> Iterator[str | _Import]:
    """A syntax tree from its root: each node's class and fields, and how many nodes follow in each of them.

    A loop, as expressions may be nested deeply.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield type(node).__name__
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _described_import(node, package)
            continue
        if isinstance(node, ast.Call):
            yield from _import_call(node)
        below: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or name in LEFT_OUT:
                continue
            if isinstance(value, ast.AST):
                yield name
                below.append(value)
            elif not isinstance(value, list):
                yield f"{name} {value!r}"
            elif value:
                kept = [one for one in value if not _is_idle(one)]
                nodes = [one for one in kept if isinstance(one, ast.AST)]
                shape = [0 if isinstance(one, ast.AST) else repr(one) for one in kept]
                yield f"{name} {len(kept) if len(nodes) == len(kept) else shape}"
                below += nodes
        waiting.extend(reversed(below))


def _is_idle(node: object) -> bool:
    """Whether a statement does nothing when it runs: a text, `pass`, or what only type checkers read."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return getattr(node.test, "attr", getattr(node.test, "id", "")) == "TYPE_CHECKING" and not node.orelse
    return isinstance(node, ast.Pass)


def _described_import(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str | _Import]:
    """What an import names, and what it is called here."""
    source = _source(package, node) if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        yield _Import(source, alias.name) if source else _Import(alias.name)
        yield alias.asname or alias.name


def _source(package: str, node: ast.ImportFrom) -> str:
    """The absolute name of the module that `from ... import` names."""
    parts = package.split(".")[: -(node.level - 1) or None] if node.level else []
    return ".".join([*parts, *([node.module] if node.module else [])])


def _import_call(node: ast.Call) -> Iterator[_Import]:
    """The module that a call imports whose argument is a text, as `import_module("name")`."""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    argument = node.args[0] if called in IMPORTERS and node.args else None
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield _Import(argument.value)
