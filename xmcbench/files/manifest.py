"""A manifest of a folder: size and digest (XXH3, 128 bits) of each file, checked before the files are used.

XXH3 finds damage, not forgery. It reads about as fast as memory does.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from xmcbench.errors import XMCBenchError

MANIFEST = "manifest.json"
_READ_BYTES = 1 << 22
_checked: dict[Path, object] = {}  # folders that this process checked, with sizes and times of their files


class DamagedFolder(XMCBenchError):
    """A folder whose files are not those that its manifest lists."""


def write_manifest(directory: Path) -> None:
    """Write `manifest.json` for the files that are in `directory` now."""
    names = sorted(path.name for path in directory.iterdir() if path.name != MANIFEST)
    files = {name: {"bytes": (directory / name).stat().st_size, "xxh3": _digest(directory / name)} for name in names}
    (directory / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def check_manifest(directory: Path) -> None:
    """Raise `DamagedFolder` unless the files of `directory` are those that its manifest lists.

    Digests are computed once per process, and again where the size or time of a file has changed since.
    """
    try:
        files = json.loads((directory / MANIFEST).read_bytes())
        sizes = {name: int(entry["bytes"]) for name, entry in files.items()}
        digests = {name: str(entry["xxh3"]) for name, entry in files.items()}
        states = {name: (directory / name).stat() for name in files if Path(name).name == name}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFolder(f"{directory}: the manifest or a file it lists cannot be read ({error})") from error
    for name, size in sizes.items():
        if name not in states or states[name].st_size != size:
            found = f"{states[name].st_size:,} bytes" if name in states else "a path as name"
            raise DamagedFolder(f"{directory / name}: found {found}, expected {size:,} bytes")
    stamp = {name: (state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states.items()}
    if _checked.get(directory.resolve()) == stamp:
        return
    with ThreadPoolExecutor() as threads:
        for name, digest in zip(files, threads.map(_digest, [directory / name for name in files]), strict=True):
            if digest != digests[name]:
                raise DamagedFolder(f"{directory / name}: found the digest {digest}, expected {digests[name]}")
    _checked[directory.resolve()] = stamp


def _digest(path: Path) -> str:
    digest, buffer = xxhash.xxh3_128(), bytearray(_READ_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
    except OSError as error:
        raise DamagedFolder(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()
