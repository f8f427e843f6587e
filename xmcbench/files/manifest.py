"""Folders whose files are checked before they are used, by a manifest of the size and digest (XXH3, 128 bits) of each.

XXH3 finds damage, not forgery. It reads about as fast as memory does. A file is damaged where it is missing or has
another size or digest. One that cannot be read now is not: that is a `MachineFault`.

A cached folder is made once from its source, and again where it is damaged. It holds its own name, which has a hash of
what it was made from: a folder that was copied to the place of another is not opened.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import xxhash

from xmcbench.errors import XMCBenchError, shown
from xmcbench.files.atomic import atomic_directory, atomic_write
from xmcbench.files.regular import MachineFault, is_missing, machine_fault, open_regular

MANIFEST = "manifest.json"
_SMALL = 1 << 20  # bytes of files that one thread reads as soon as several
_MANIFEST_BYTES = 10_000_000
_READ_BYTES = 1 << 22
_checked: dict[Path, tuple[Any, ...]] = {}  # digest, size and time of each file that this process checked
T = TypeVar("T")
NAME = "name.txt"  # the file that holds the name of the folder
_log = logging.getLogger(__name__)


class DamagedFolder(XMCBenchError):
    """A folder whose files are not those that its manifest lists."""


def write_manifest(directory: Path, names: Iterable[str] | None = None, manifest: str = MANIFEST) -> None:
    """Write the manifest of the files `names` of `directory`, by default of all files in it and its folders."""
    if names is None:
        paths = (path for path in directory.rglob("*") if path.is_file() and path != directory / manifest)
        names = sorted(path.relative_to(directory).as_posix() for path in paths)
    _write(directory / manifest, {name: _entry(directory / name) for name in names})


@contextmanager
def checked_folder(directory: Path) -> Iterator[Path]:
    """A new folder that takes the place of `directory`, with a manifest, when the block succeeds."""
    shutil.rmtree(directory, ignore_errors=True)
    with atomic_directory(directory) as made:
        yield made
        write_manifest(made)


def add_to_manifest(directory: Path, name: str) -> None:
    """Enter the file `name`, which is new or changed, into the manifest of `directory`; the first entry makes it."""
    try:
        entries = _read(directory / MANIFEST)
    except DamagedFolder:
        entries = {}
    _write(directory / MANIFEST, entries | {name: _entry(directory / name)})


def check_manifest(directory: Path, names: Iterable[str] | None = None, manifest: str = MANIFEST) -> None:
    """Raise `DamagedFolder` unless files of `directory` are as its manifest lists them: `names`, or all it lists.

    Raises `MachineFault` for a file that is there and cannot be read. A digest is computed once per process, and again
    where the size or time of a file has changed since.
    """
    entries = _read(directory / manifest)
    unchecked: dict[Path, str] = {}
    for name in entries if names is None else names:
        path = directory / name
        if name not in entries:
            raise DamagedFolder(f"{path}: damaged: found no entry for it in {manifest}")
        state = _state(path)
        size, digest = entries[name]["bytes"], entries[name]["xxh3"]
        if state[0] != size:
            raise DamagedFolder(f"{path}: damaged: found {state[0]:,} bytes, expected {size:,}")
        if _checked.get(path.absolute()) != (digest, *state):
            unchecked[path] = digest
    for (path, digest), actual in zip(unchecked.items(), _digests(list(unchecked)), strict=True):
        if actual != digest:
            raise DamagedFolder(f"{path}: damaged: found the digest {actual}, expected {digest}")
        _checked[path.absolute()] = (digest, *_state(path))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a manifest: sizes and digests by names of files, which lie below the manifest's folder."""
    try:
        with _faults(path), open_regular(path, _MANIFEST_BYTES) as file:
            entries = json.loads(file.read())
        for name, entry in entries.items():
            if set(entry) != {"bytes", "xxh3"} or type(entry["bytes"]) is not int or type(entry["xxh3"]) is not str:
                raise ValueError(f"the entry of {name!r} is not of a size and a digest")
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
                raise ValueError(f"{name!r} is not a file of the folder")
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise DamagedFolder(f"{path}: damaged: not a manifest: {problem}") from None
    found: dict[str, dict[str, Any]] = entries
    return found


def _write(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(entries, indent=1).encode())


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "xxh3": _digest(path)}


def _state(path: Path) -> tuple[int, int, int]:
    with _faults(path):
        state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def _digests(paths: list[Path]) -> list[str]:
    """The digests of several files, of large ones by several threads."""
    if sum(path.stat().st_size for path in paths) < _SMALL:  # as for a listing, which reads a dataset's card
        return [_digest(path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        return list(threads.map(_digest, paths))


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with _faults(path):
        buffer = bytearray(min(_READ_BYTES, path.stat().st_size + 1))
        with open_regular(path, buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """A missing file, or something that is no file, is damage; any other error in reading `path` a `MachineFault`."""
    try:
        yield
    except OSError as problem:
        if is_missing(problem):
            raise DamagedFolder(f"{path}: damaged: the file is missing") from None
        raise MachineFault(path, problem) from problem
    except XMCBenchError as problem:  # of `open_regular`
        raise DamagedFolder(f"{problem}: damaged") from None


def open_or_make(directory: Path, open: Callable[[Path], T], write: Callable[[Path], None], name: str) -> T:
    """What `open` reads from the folder `directory`. A missing folder is made; a damaged one again, with a warning.

    `write` writes the files of the folder into the folder that it receives. `open` raises ValueError, OSError or
    EOFError where the files do not belong together; it is called after their digests are checked. `name` names the
    folder for people. One process at a time makes a folder, and the others wait for it.

    Raises XMCBenchError where files cannot be written, and `MachineFault` where they cannot be read: then the folder
    stays as it is.
    """
    with suppress(DamagedFolder):  # another process may be making it: look once more under the lock
        return _opened_intact(directory, open)
    from filelock import FileLock

    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.with_name(f"{directory.name}.lock")):
        if directory.is_dir():
            try:
                return _opened_intact(directory, open)
            except DamagedFolder as damage:
                _log.warning("warning: %s is damaged and is written again: %s", name, damage)
                shutil.rmtree(directory)
        with atomic_directory(directory) as made:
            try:
                write(made)
                (made / NAME).write_text(directory.name, encoding="utf-8")
                write_manifest(made)
            except OSError as error:
                reason = f"{error.strerror or error}; {shutil.disk_usage(made).free:,} bytes of its disk are free"
                raise XMCBenchError(f"{directory}: {name} cannot be written ({reason})") from error
        return _opened_intact(directory, open)


def check_cached_folder(directory: Path, names: Iterable[str] | None = None) -> None:
    """Raise `DamagedFolder` unless `directory` is the folder that was made under this name, and its files are intact.

    Only the files `names` are checked, by default all.
    """
    check_manifest(directory, None if names is None else [*names, NAME])
    with _faults(directory / NAME):
        written = (directory / NAME).read_text(encoding="utf-8", errors="replace")
    if written != directory.name:
        raise DamagedFolder(f"{directory}: holds a copy of {shown(written)}")


def _opened_intact(directory: Path, open: Callable[[Path], T]) -> T:
    check_cached_folder(directory)
    try:
        return open(directory)
    except (OSError, EOFError, ValueError) as problem:  # pydantic's errors are ValueErrors
        if fault := machine_fault(problem):
            raise MachineFault(directory, OSError(0, fault)) from problem
        if isinstance(problem, OSError) and problem.errno and not is_missing(problem):
            raise MachineFault(directory, problem) from problem
        raise DamagedFolder(f"{directory}: {' '.join(str(problem).split())}") from problem
