"""Downloads from a server of this process that knows ranges, and that breaks off when it is told to."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import told

from xmcbench.data import load
from xmcbench.data.source import Draft, FolderSource
from xmcbench.errors import XMCBenchError
from xmcbench.files import network
from xmcbench_plugins.datasets.download import download
from xmcbench_plugins.datasets.exporting import export


class Server(ThreadingHTTPServer):
    """Serves `content`, the first `breaks` bytes of an answer only; notes the first byte of each answer."""

    content, tag, breaks = b"", '"1"', 10**9

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.begun: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/wiki10-31k.tar.gz"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.content
        asked = self.headers.get("Range") if self.headers.get("If-Range") == self.server.tag else None
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked and first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("ETag", self.server.tag)
        self.end_headers()
        self.server.begun.append(first)
        self.wfile.write(content[first : first + self.server.breaks])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        server.content = bytes(range(256)) * 40
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with network.allow_network():
            yield server
        server.shutdown()


def test_a_download_goes_on_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    path, seen = tmp_path / "archive", []
    server.breaks = 3000
    for here in (3000, 6000, 9000):
        with pytest.raises(XMCBenchError, match=f"{here:,} bytes are kept"):
            download(server.url, path)
    assert not path.exists()
    download(server.url, path, lambda here, total: seen.append((here, total)))
    assert server.begun == [0, 3000, 6000, 9000]
    assert path.read_bytes() == server.content
    assert seen[-1] == (10240, 10240)
    assert [file.name for file in tmp_path.iterdir()] == ["archive"]


def test_a_file_that_changed_meanwhile_is_downloaded_anew(server: Server, tmp_path: Path) -> None:
    server.breaks = 3000
    with pytest.raises(XMCBenchError):
        download(server.url, tmp_path / "archive")
    server.content, server.tag, server.breaks = b"other" * 2000, '"2"', 10**9
    download(server.url, tmp_path / "archive")
    assert (tmp_path / "archive").read_bytes() == server.content


def test_a_full_disk_is_known_before_anything_is_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=99))
    with pytest.raises(XMCBenchError, match=r"10,240 bytes are still to come, .* has 99 free"):
        download(server.url, tmp_path / "archive")
    assert not list(tmp_path.iterdir())


def test_no_answer_is_one_line(tmp_path: Path) -> None:
    with network.allow_network(), pytest.raises(XMCBenchError, match=r"refused.*; 0 bytes are kept"):
        download("http://127.0.0.1:9/archive", tmp_path / "archive")


def test_fetch_downloads_checks_and_unpacks(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(load("catalog-50"), tmp_path / "made", Draft(name="made"))
    (tmp_path / "made" / "notes.txt").write_text("notes")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(tmp_path / "made", "xmc-base/mine")
    server.content = packed.getvalue()
    source = FolderSource(Draft(name="mine"), server.url)
    monkeypatch.setattr("xmcbench.data.prepared.find_source", lambda *_: source)

    def fetch(*options: str) -> str:
        _, shown, errors = told(capsys, "datasets", "fetch", "mine", "--data", tmp_path, *options)
        return shown + errors

    digest = hashlib.sha256(server.content).hexdigest()
    assert f"found the SHA-256 {digest}, expected 00" in fetch("--sha256", "00")
    assert "no layout has files of these names: 'xmc-base/mine/notes.txt'" in fetch("--sha256", digest)
    assert "already on disk" in fetch()
    assert server.begun == [0]
    assert source.read(tmp_path).card.num_labels == 50
