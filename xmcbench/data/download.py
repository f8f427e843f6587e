"""Download an archive over HTTP. A download that was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from xmcbench.errors import XMCBenchError

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
        raise XMCBenchError(f"{url}: {problem}; {here:,} bytes are here, the next try goes on after them") from problem
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
