"""Firefox without a window, driven over WebDriver BiDi, which it speaks without a driver beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

NAMES = ("firefox", "firefox-esr")
PATIENCE = 300  # seconds


class Firefox:
    """A page in Firefox."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._ids = socket, count(1)
        self._call("session.new", capabilities={})
        self._context = self._call("browsingContext.getTree")["contexts"][0]["context"]

    def open(self, uri: str, width: int = 1280) -> None:
        size = {"width": width, "height": 900}
        self._call("browsingContext.setViewport", context=self._context, viewport=size)
        self._call("browsingContext.navigate", context=self._context, url=uri, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, through JSON."""
        wrapped = f"(async () => JSON.stringify(await ({expression})))()"
        answer = self._call("script.evaluate", expression=wrapped, target={"context": self._context}, awaitPromise=True)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"]["value"])

    def run(self, script: str) -> None:
        """Run a script in the page."""
        self._call("script.evaluate", expression=script, target={"context": self._context}, awaitPromise=False)

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(PATIENCE))).get("id") != number:
            pass
        assert message["type"] == "success", message
        return message["result"]


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """Firefox with a profile of its own; skips the test where there is none."""
    client = pytest.importorskip("websockets.sync.client", reason="websockets is not installed ([test])")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Firefox on the path ({', '.join(NAMES)}): apt-get install firefox-esr")
    command = [path, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    profile.mkdir()
    with (profile / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        address = _address(profile / "WebDriverBiDiServer.json")
        with client.connect(f"ws://{address}/session", max_size=None, open_timeout=PATIENCE) as socket:
            yield Firefox(socket)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _address(path: Path) -> str:
    """Host and port where Firefox listens, which it writes into its profile."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if path.exists() and path.read_text():
            found = json.loads(path.read_text())
            return f"{found['ws_host']}:{found['ws_port']}"
        time.sleep(0.1)
    raise TimeoutError(f"{path}: Firefox did not start")
