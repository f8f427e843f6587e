"""Download an archive over HTTP. A download that was interrupted goes on where it stopped.

Then its files are unpacked. Archives are not trusted: only regular files are unpacked, and only the files of a layout,
by their names; folders inside the archive, absolute paths, `..`, links and devices have no effect. Declared sizes are
checked before anything is written.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from xmcbench.data import formats
from xmcbench.errors import XMCBenchError, shown
from xmcbench.files.atomic import atomic_directory

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60.0

Progress = Callable[[int, int], None]  # bytes that are here, and bytes of the whole file (0 if the server does not say)


def download(url: str, path: Path, progress: Progress = lambda *_: None) -> None:
    """Download `url` to `path`. Until the file is whole, what is here of it is in `<path>.part`.

    If the file has changed on the server in the meantime, the download begins again.

    Raises XMCBenchError if the server does not answer or breaks off, and before anything is written if the disk has too
    little space.
    """
    partial = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch_rest(url, partial, progress)
    except (HTTPException, OSError) as problem:  # urllib's errors are OSErrors
        here = partial.stat().st_size if partial.exists() else 0
        raise XMCBenchError(
            f"{url}: {problem}; {here:,} bytes are kept: the same command continues after them"
        ) from problem
    partial.replace(path)


def check_digest(path: Path, expected: str) -> None:
    """Raise XMCBenchError if the SHA-256 of a file is not `expected`; nothing is checked where that is empty."""
    if expected:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected.lower():
            raise XMCBenchError(f"{path}: found the SHA-256 {found}, expected {expected}")


def _fetch_rest(url: str, partial: Path, progress: Progress) -> None:
    """Append what `partial` lacks."""
    tag = partial.with_name(partial.name + ".tag")  # identifies the version of the file on the server
    version = tag.read_text() if tag.exists() else ""
    here = partial.stat().st_size if partial.exists() and version else 0
    headers = {"Range": f"bytes={here}-", "If-Range": version} if here else {}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as problem:
        if problem.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and here:  # all of it is here
            tag.unlink()
            return
        raise
    with response:
        here = here if response.status == HTTPStatus.PARTIAL_CONTENT else 0
        total = _total(response)
        if (free := shutil.disk_usage(partial.parent).free) < total - here:
            raise XMCBenchError(f"{url}: {total - here:,} bytes are still to come, {partial.parent} has {free:,} free")
        strong = response.headers.get("ETag", "W/")
        tag.write_text(response.headers.get("Last-Modified", "") if strong.startswith("W/") else strong)
        with partial.open("ab" if here else "wb") as file:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                here += len(chunk)
                progress(here, total)
    if here < total:
        raise OSError(f"the connection ended after {here:,} of {total:,} bytes")
    tag.unlink()


def _total(response: HTTPResponse) -> int:
    """The size of the whole file; 0 if the server does not say."""
    whole = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("Content-Range", ""))
    return int(whole.group(1)) if whole else int(response.headers.get("Content-Length") or 0)


MAX_RATIO = 200  # of unpacked to packed bytes; text rarely reaches 20


SHOWN_FILES = 8  # names of files that a message lists


def listed(left_out: Sequence[str]) -> str:
    """What a message says of members of an archive that were left out, first those that may list pairs to ignore."""
    first = sorted(left_out, key=lambda name: (not formats.seems_to_list_pairs(name), name))[:SHOWN_FILES]
    more = len(left_out) - len(first)
    names = ", ".join(map(shown, first)) + (f" and {more:,} more" if more else "")
    return f"left out, as no layout has files of these names: {names}" if left_out else "nothing was left out"


class Unpacked(NamedTuple):
    """The names of an archive's files that were unpacked, and of those that no layout has, both sorted."""

    files: list[str]
    left_out: list[str]


def unpack(archive: Path, directory: Path) -> Unpacked:
    """Unpack the files of a layout into the new folder `directory`.

    Raises XMCBenchError if `archive` is damaged, too large for the disk, or holds no dataset.
    """
    if directory.exists():
        raise XMCBenchError(f"{directory}: found a folder of this name, expected none: delete it to unpack again")
    left_out: list[str] = []
    try:
        with atomic_directory(directory) as made:
            _unpack(archive, made, left_out)
            try:
                formats.detect(made)
            except XMCBenchError as error:
                reason = str(error).removeprefix(f"{made}: ")
                raise XMCBenchError(f"{archive}: {reason}; {listed(left_out)}") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise XMCBenchError(f"{archive}: cannot be unpacked ({error})") from error
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    return Unpacked(files, sorted(left_out))


def _unpack(archive: Path, directory: Path, left_out: list[str]) -> None:
    """Unpack the files of a layout, and add the names of the others to `left_out`."""
    limit = min(shutil.disk_usage(directory).free, MAX_RATIO * archive.stat().st_size)
    for place, size, file in _members(archive, left_out):
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
            shutil.copyfileobj(file, out, CHUNK_BYTES)


def _members(archive: Path, left_out: list[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name within a dataset folder, declared size and content of each file that belongs to a layout.

    The names of all other members but folders, of links too, are added to `left_out`. Neither `zipfile` nor `tarfile`
    reads more of a file than its declared size.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if info.is_dir():
                    continue
                if place := _place(info.filename):
                    yield place, info.file_size, packed.open(info)
                else:
                    left_out.append(info.filename)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            for member in packed_tar:
                if member.isreg() and (place := _place(member.name)):
                    file = packed_tar.extractfile(member)
                    assert file is not None
                    yield place, member.size, file
                elif not member.isdir():
                    left_out.append(member.name)
    else:
        raise XMCBenchError(f"{archive}: found neither a zip nor a tar archive")


def _place(name: str) -> str | None:
    """The path of an archived file in a dataset folder; None for files of no layout."""
    known, parts = formats.file_names(), PurePosixPath(name).parts
    return next((place for place in ("/".join(parts[-2:]), "/".join(parts[-1:])) if place in known), None)
