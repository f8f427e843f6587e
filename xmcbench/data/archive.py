"""Unpack the files of a dataset from an archive that a user has downloaded. Archives are not trusted.

Only regular files are unpacked, and only the files of a layout, by their names: folders inside the archive, absolute
paths, `..`, links and devices have no effect. Declared sizes are checked before anything is written.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO

from xmcbench.data import formats
from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_directory

MAX_RATIO = 200  # of unpacked to packed bytes; text rarely reaches 20


def unpack(archive: Path, directory: Path) -> list[str]:
    """Unpack the files of a layout into the new folder `directory`; returns their names.

    Raises XMCBenchError if `archive` is damaged, too large for the disk, or holds no dataset.
    """
    if directory.exists():
        raise XMCBenchError(f"{directory}: found a folder of this name, expected none: delete it to unpack again")
    try:
        with atomic_directory(directory) as made:
            _unpack(archive, made)
            formats.detect(made)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise XMCBenchError(f"{archive}: cannot be unpacked ({error})") from error
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def _unpack(archive: Path, directory: Path) -> None:
    limit = min(shutil.disk_usage(directory).free, MAX_RATIO * archive.stat().st_size)
    for place, size, file in _members(archive):
        limit -= size
        if limit < 0:
            raise XMCBenchError(
                f"{archive}: {place} declares {size:,} bytes, more than fit on the disk or a dataset has"
            )
        target = directory / place
        if target.exists():
            raise XMCBenchError(f"{archive}: found {place} twice, expected each file once")
        target.parent.mkdir(exist_ok=True)
        with closing(file), target.open("wb") as out:
            shutil.copyfileobj(_Bounded(file, size), out, 1 << 20)


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name within a dataset folder, declared size and content of each file that belongs to a layout."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir() and (place := _place(info.filename)):
                    yield place, info.file_size, packed.open(info)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            for member in packed_tar:
                if member.isreg() and (place := _place(member.name)):
                    file = packed_tar.extractfile(member)
                    assert file is not None
                    yield place, member.size, file
    else:
        raise XMCBenchError(f"{archive}: found neither a zip nor a tar archive")


def _place(name: str) -> str | None:
    """The path of an archived file in a dataset folder; None for files of no layout."""
    known = {stem for layout in formats.LAYOUTS for stem in layout.stems}
    known |= {file for files in formats.IGNORE_FILES.values() for file in files}
    known |= {f"{stem}.gz" for stem in known}
    parts = PurePosixPath(name).parts
    for place in ("/".join(parts[-2:]), parts[-1] if parts else ""):
        if place in known:
            return place
    return None


class _Bounded:
    """A file that may not hold more bytes than it declared."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, count: int = -1) -> bytes:
        content = self._file.read(count)
        self._left -= len(content)
        if self._left < 0:
            raise XMCBenchError("found more bytes in an archive than it declares")
        return content
