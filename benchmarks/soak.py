"""A served model under load: what is lost, how long a request takes alone and among many, and the server's memory.

    python benchmarks/soak.py --markdown docs/serving.md

Each method is trained on one dataset and served by `xmcbench serve`. Every text is first asked about alone. Then many
clients ask at once, half of them on one connection, half on a new one for each request, as Annif does; before every
hundredth request a client leaves with its request half sent. An answer with other labels than the text got alone is
wrong; one that never comes is lost. `in a batch` is the time of a text where the model predicts all texts in one call.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psutil
from report import END, options, put, run, seconds_of
from tabulate import tabulate

from xmcbench.data import load
from xmcbench.runs.saved_model import load_saved_model
from xmcbench.trial.programs import resident_bytes
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store

METHODS: dict[str, dict[str, Any]] = {
    "tfidf-nn": {"method": "tfidf-nn"},
    "dexml": {"method": "dexml"},
    "sparse-ranker": {"method": "sparse-ranker", "first": {"method": "dexml"}},
    "omikuji-plt": {"method": "omikuji-plt"},
    "napkinxc-plt": {"method": "napkinxc-plt"},
    "pecos-xrlinear": {"method": "pecos-xrlinear"},
}
TEXTS = 200  # different ones


@dataclass
class Answers:
    """What the clients got: milliseconds of each request, and the texts whose answer was wrong or never came."""

    milliseconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


async def request(port: int, text: str, open_: Any = None, part: float = 1.0) -> tuple[list[str], Any]:
    """The URIs that a text gets, and the connection, which stays open; of a `part` of a request none, and it ends."""
    body = urlencode({"text": text}).encode()
    head = f"POST /suggest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reader, writer = open_ or await asyncio.open_connection("127.0.0.1", port)
    writer.write((head + body)[: int(part * len(head + body))])
    await writer.drain()
    if part < 1:
        writer.close()
        return [], None
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length"))
    content = json.loads(await reader.readexactly(length))
    if " 200 " not in status:
        raise ConnectionError(status)
    return [hit["uri"] for hit in content["results"]], (reader, writer)


async def client(
    port: int, work: Iterator[tuple[int, str]], right: dict[str, list[str]], keep: bool, got: Answers
) -> None:
    """Take one text after another until none is left."""
    open_ = None
    for number, text in work:
        if number % 100 == 99:
            await request(port, text, part=0.5)
        start = time.perf_counter()
        try:
            uris, open_ = await request(port, text, open_)
        except (OSError, EOFError, asyncio.IncompleteReadError):
            got.lost.append(text)
            open_ = None
            continue
        got.milliseconds.append(1000 * (time.perf_counter() - start))
        if uris != right[text]:
            got.wrong.append(text)
        if not keep:
            open_[1].close()
            open_ = None


async def soak(port: int, texts: Sequence[str], requests: int, at_once: int) -> tuple[Answers, Answers, float]:
    """What texts get alone, what clients get at once, and the seconds of the latter."""
    alone, many, right = Answers(), Answers(), dict[str, list[str]]()
    for text in texts:
        start = time.perf_counter()
        right[text], (_, writer) = await request(port, text)
        alone.milliseconds.append(1000 * (time.perf_counter() - start))
        writer.close()
    work = iter([(number, texts[number % len(texts)]) for number in range(requests)])
    start = time.perf_counter()
    await asyncio.gather(*(client(port, work, right, bool(number % 2), many) for number in range(at_once)))
    return alone, many, time.perf_counter() - start


@contextmanager
def served(key: str, store: Path, data: Path) -> Iterator[tuple[int, int]]:
    """Port and process of a server."""
    command = [
        sys.executable,
        "-m",
        "xmcbench",
        "serve",
        key,
        "--port",
        "0",
        "--store",
        str(store),
        "--data",
        str(data),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found, said = None, " "
            while found is None and said:
                said = process.stderr.readline()
                found = re.search(r":(\d+)/suggest", said)
            if found is None:
                raise SystemExit("the server did not start")
            yield int(found[1]), process.pid
        finally:
            process.terminate()
            if rest := [line for line in process.stderr if line != "ended\n"]:
                print("the server printed:", *rest)


def measured(record: Record, store: Path, given: Any) -> dict[str, Any]:
    """The row of a method."""
    dataset = load(record.trial.dataset, given.data)
    texts = list(dict.fromkeys(dataset.test.texts[at] for at in range(len(dataset.test.texts))))[:TEXTS]
    method = load_saved_model(Store(store), record)
    method.predict(texts[:1], 10)
    batch = 1000 * seconds_of(lambda: method.predict(texts, 10)) / len(texts)
    requests = given.requests
    with served(record.key, store, given.data) as (port, process):
        before = resident_bytes(process)
        alone, many, seconds = asyncio.run(soak(port, texts, requests, given.at_once))
        after, threads = resident_bytes(process), psutil.Process(process).num_threads()
    middle, last = np.percentile(many.milliseconds, [50, 99])
    return {
        "method": record.trial.label, "requests": f"{requests:,}", "at once": given.at_once, "lost": len(many.lost),
        "wrong": len(many.wrong), "ms in a batch": f"{batch:.2f}", "ms alone": f"{np.median(alone.milliseconds):.1f}",
        "ms at once": f"{middle:.0f}", "99 of 100 below": f"{last:.0f}", "requests/s": f"{requests / seconds:.0f}",
        "MB before": f"{before / 1e6:.0f}", "MB after": f"{after / 1e6:.0f}", "threads": threads,
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--dataset", default="catalog-5k")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--data", type=Path, default=Path("data"))
    given = parser.parse_args()
    suite = {
        "name": "soak", "datasets": [given.dataset], "budget": {"epochs": 1},
        "methods": {label: METHODS[label] for label in given.methods},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        records = {record.trial.label: record for record in run(suite, store, given.data)}
        rows = [measured(records[label], store, given) for label in given.methods]
    machine = records[given.methods[0]].provenance
    text = tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
    text += f"\n\n{given.dataset}, {machine['cpu']}, {machine['cores_usable']} cores."
    print(text)
    if given.markdown is not None:
        put(text, given.markdown, "<!-- table of soak.py -->", END)


if __name__ == "__main__":
    main()
