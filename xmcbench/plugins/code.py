"""The identity of a program: a digest of what its modules do. Comments, formatting and names of files leave it alone.

A digest covers the packages that a plugin is written in and each module that these import, directly or through others,
unless it is in the standard library, in xmcbench or in another installed distribution. Of distributions beyond those
that xmcbench needs the digest has names and versions. The code of xmcbench itself is known by the versions in
`xmcbench/trial/versions.py`.

A module enters as its syntax tree without positions, what only type checkers read and docstrings, unless it reads them.
Where it imports another module of the program, the digest of that module stands in place of its name: a file that
moved, with the imports that name it, is the same program. Other files of a package enter as they are, and so do files
that a module names by a path from its own folder.

Imports and paths are read, not run: what is computed while the plugin runs is not found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from xmcbench.plugins.registry import FIRST_PARTY, OWN

INSTALLED = ("site-packages", "dist-packages")  # folders of distributions; what lies elsewhere may change at any time
# Modules of the distributions that xmcbench depends on: provenance has the versions that matter.
NEEDED = {
    *("charset_normalizer", "filelock", "huggingface_hub", "jinja2", "lazy_loader", "numpy", "platformdirs", "pluggy"),
    *("psutil", "pydantic", "yaml", "rich", "safetensors", "sklearn", "scipy", "sparse_dot_topn", "tabulate"),
    *("threadpoolctl", "tokenizers", "torch", "transformers", "typer", "typing_extensions", "xxhash"),
}
NO_DATA = frozenset({".py", ".pyc", ".pyi"})  # files of a package that are its modules, or come from them
READ_ME = "README"  # begins the name of a file for people
DOCSTRINGS = (b"__doc__", b"getdoc")  # a module with one of these reads docstrings, as prompts
LONGEST_NAME = 255  # characters; a longer text names no file
LARGEST_FILE = 1 << 24  # bytes of a file beside modules that is read whole
BLOCKS, BLOCK_BYTES = 64, 1 << 16  # that are read of a larger one
LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})  # fields that say nothing that others do not
COMMIT = re.compile(r'"commit_id":\s*"(\w+)"')  # in the file in which pip notes where a distribution came from
IMPORTS = (ast.Import, ast.ImportFrom)
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
    named: tuple[Path, ...] = ()  # files that its texts name

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
    data = [path for package in packages for path in _data_of(package)]
    return _code([module for package in packages for module in _modules_of(package)], data)


@cache
def code_of_source(source: str) -> Code:
    """The program of a text, as of the cells of a notebook, and of the modules that it imports."""
    return _code([_parsed("__main__", None, "", source.encode())], [])


def _code(roots: Sequence[_Module], data: Sequence[Path]) -> Code:
    known, versions = {module.name: module for module in roots}, set[str]()
    own = {home.distribution for module in roots if (home := _home(module.name))}
    waiting = list(roots)
    while waiting:
        for name in {part.name for part in waiting.pop().parts if isinstance(part, _Import)}:
            home = _home(name)
            if home and home.distribution and home.distribution not in own:
                versions.add(home.distribution)
            elif home and home.path and home.name not in known:
                known[home.name] = _read(home.name, home.path)
                waiting.append(known[home.name])
    alone = {name: module.digest({}) for name, module in known.items()}
    modules = (module.digest(alone) for module in known.values() if module.parts)
    files = {module.path for module in known.values() if module.path}
    beside = {*data, *(path for module in known.values() for path in module.named)} - files
    parts = [*sorted(modules), *sorted(map(_file_digest, beside)), *sorted(versions)]
    return Code(tuple(sorted(files)), sha256("\n".join(parts).encode()).hexdigest())


def _modules_of(package: str) -> Iterator[_Module]:
    """The modules in the folders of an imported package, or an imported module."""
    imported = sys.modules[package]
    folders = [Path(folder) for folder in getattr(imported, "__path__", ())]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            yield _read(".".join((package, *inner)), path)
    if not folders and imported.__file__:
        yield _read(package, Path(imported.__file__))


def _data_of(package: str) -> Iterator[Path]:
    """The files of an imported package that are no modules, as prompts and compiled code; none of hidden folders."""
    for folder in map(Path, getattr(sys.modules[package], "__path__", ())):
        for path in folder.rglob("*"):
            parts = path.relative_to(folder).parts
            if path.suffix in NO_DATA or path.name.startswith(READ_ME) or not S_ISREG(_mode(path)):
                continue
            if not any(part.startswith(".") or part == "__pycache__" for part in parts):
                yield path


def _file_digest(path: Path) -> str:
    """The digest of a file; of a large one that of its size and of blocks all over it, as weights change everywhere."""
    size = path.stat().st_size
    if size <= LARGEST_FILE:
        return sha256(path.read_bytes()).hexdigest()
    digest = sha256(f"{size} bytes".encode())
    with path.open("rb") as file:
        for at in range(0, size, size // BLOCKS):
            file.seek(at)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def _read(name: str, path: Path) -> _Module:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _parsed(name, path, package, path.read_bytes())


def _parsed(name: str, path: Path | None, package: str, content: bytes) -> _Module:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # such as a template, or compiled code
        return _Module(name, path, (sha256(content).hexdigest(),))
    documented = any(word in content for word in DOCSTRINGS)
    if all(map(_is_idle, tree.body)) and not documented:
        return _Module(name, path, ())
    parts, texts = _described(tree, package, documented)
    return _Module(name, path, parts, tuple(_named_files(texts, path.parent)) if path else ())


def _named_files(texts: set[str], folder: Path) -> Iterator[Path]:
    """The files below or beside `folder` that texts of a module name, as `Path(__file__).parent / "data" / "a.txt"`."""
    names = [text for text in sorted(texts) if text.isprintable() and 0 < len(text) <= LONGEST_NAME and text[0] != "/"]
    folders = [folder, *(place for name in names if S_ISDIR(_mode(place := folder / name)) and place != folder)]
    for place in folders:
        yield from (path for name in names if S_ISREG(_mode(path := place / name)))


def _mode(path: Path) -> int:
    """The mode of a file; 0 where there is none, or it is out of reach."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


class _Home(NamedTuple):
    """Where a module is: its name and file, or those of the module that it is in, and who installed it."""

    name: str
    path: Path | None  # None for a folder without code of its own
    distribution: str = ""  # name and version; empty for what lies outside of installed distributions


@cache
def _home(name: str) -> _Home | None:
    """The home of the module that an absolute name is, or is in.

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
    installed = top != FIRST_PARTY and any(part in INSTALLED for part in where.parts)
    return _Home(*_inside(top, path, folders, rest), _distribution(top, where) if installed else "")


def _inside(name: str, path: Path | None, folders: list[Path], parts: Sequence[str]) -> tuple[str, Path | None]:
    """The module that `parts` lead to from the package `name`, in `folders`; the last one that is there."""
    for part in parts:
        packages = [file for folder in folders if (file := folder / part / "__init__.py").is_file()]
        modules = [file for folder in folders if (file := folder / f"{part}.py").is_file()]
        spaces = [space for folder in folders if (space := folder / part).is_dir()]
        if not (packages or modules or spaces):
            break
        name, path = f"{name}.{part}", next(iter((*packages, *modules)), None)
        folders = [packages[0].parent] if packages else [] if modules else spaces
    return name, path


@cache
def _distribution(top: str, where: Path) -> str:
    """The name and version of the distribution that installed a module which lies at `where`; empty if none did."""
    try:
        return _called(distribution(top))
    except PackageNotFoundError:
        pass
    at = next(folder for folder in where.parents if folder.name in INSTALLED)
    for installed in distributions(path=[str(at)]):  # called otherwise than its module, as pyyaml is
        listed = "\n" + (installed.read_text("RECORD") or "")
        if f"\n{top}/" in listed or f"\n{top}.py," in listed:
            return _called(installed)
    return ""


def _called(found: Distribution) -> str:
    """Name and version, without what tells builds of a version apart, as in 2.13.0+cpu; of a repository its commit."""
    commit = COMMIT.search(found.read_text("direct_url.json") or "")
    return f"{found.name} {found.version.partition('+')[0]}{f' at {commit[1]}' if commit else ''}"


def _described(tree: ast.AST, package: str, documented: bool) -> tuple[tuple[str | _Import, ...], set[str]]:
    """A syntax tree from its root, and its texts: each node's class and fields, and how many nodes follow in each.

    With `documented`, docstrings are part of it. A loop, as expressions may be nested deeply; each trial waits for it.
    """
    parts, texts, waiting = list[str | _Import](), set[str](), [tree]
    while waiting:
        node = waiting.pop()
        parts.append(type(node).__name__)
        if isinstance(node, IMPORTS):
            parts += _described_import(node, package)
            continue
        if isinstance(node, ast.Call):
            parts += _import_call(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        below: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or name in LEFT_OUT:
                continue
            if isinstance(value, ast.AST):
                parts.append(name)
                below.append(value)
            elif not isinstance(value, list):
                parts.append(f"{name} {value!r}")
            elif value:
                kept = [one for one in value if documented or not _is_idle(one)]
                nodes = [one for one in kept if isinstance(one, ast.AST)]
                shape = [0 if isinstance(one, ast.AST) else repr(one) for one in kept]
                parts.append(f"{name} {len(kept) if len(nodes) == len(kept) else shape}")
                below += nodes
        waiting.extend(reversed(below))
    return tuple(parts), texts


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
