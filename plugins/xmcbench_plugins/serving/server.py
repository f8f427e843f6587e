"""A server that ranks labels of texts over HTTP: uvicorn and Starlette speak HTTP, `Batches` asks the model."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from xmcbench.errors import XMCBenchError, text_of
from xmcbench.runs.terminal import echo

Answer = list[dict[str, Any]]  # uri, label and score of each label of a text, best first
Rank = Callable[[Sequence[str], int], list[Answer]]  # N texts and the number of labels: N answers

LOOPBACK = "127.0.0.1"
BACKLOG = 2048  # connections that wait to be accepted
LARGEST = 10_000_000  # bytes of a request
MOST_FIELDS = 1_000  # of a request's form; Annif sends each metadata column of a document as one
MOST_LABELS = 10_000  # that a request may ask for
MOST_TEXTS = 256  # that the model is asked about together
PATIENCE = 60  # seconds for a client to send its request
IDLE = 75  # seconds that a connection stays open between two requests


def listen(port: int) -> socket.socket:
    """A socket that listens on this machine's loopback address. Raises `XMCBenchError` if the port is taken."""
    taken = socket.socket()
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((LOOPBACK, port))
        taken.listen(BACKLOG)
    except OSError as problem:
        taken.close()
        raise XMCBenchError(f"port {port}: {problem.strerror or problem}: expected a free one (--port)") from None
    return taken


def server(rank: Rank, k: int, about: Mapping[str, Any]) -> uvicorn.Server:
    """A server whose `run(sockets=[listen(port)])` answers until it is interrupted or its `should_exit` is set.

    Requests for labels go to `rank`, with `k` labels where a request has no `limit`; `about` is the answer to `GET /`.
    """
    batches = Batches(rank)

    async def suggest(request: Request) -> Response:
        try:
            text, limit = _asked(await _body(request), k)
        except ClientDisconnect:  # the body is shorter than its Content-Length, and nobody reads an answer
            return Response(status_code=400)
        try:
            return _json({"results": await batches.ask(text, limit)})
        except Exception as problem:  # a method may raise anything; the next request may be answered
            echo(f"error: a request was not answered: {type(problem).__name__}: {_line(problem)}", err=True)
            raise HTTPException(500, f"the model failed: {_line(problem)}") from None

    async def info(_: Request) -> Response:
        return _json(about)

    async def refused(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, HTTPException)
        return _json({"error": problem.detail}, problem.status_code, problem.headers)

    app = Starlette(
        routes=[Route("/", info), Route("/suggest", suggest, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])],  # no page's own name
        exception_handlers={HTTPException: refused},
    )
    # Requests hold texts of people: nothing of them is logged.
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", timeout_keep_alive=IDLE, **quiet)
    return uvicorn.Server(config)


@dataclass(frozen=True)
class _Waiting:
    text: str
    k: int
    answer: asyncio.Future[Answer]


class Batches:
    """Asks a model about one batch of texts at a time. Texts that arrive while it predicts are the next batch."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._thread = ThreadPoolExecutor(1, "model")
        self._waiting: list[_Waiting] = []
        self._drain: asyncio.Task[None] | None = None

    async def ask(self, text: str, k: int) -> Answer:
        """The best `k` labels of a text. Raises what the model raises."""
        one = _Waiting(text, k, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._drain is None:
            self._drain = asyncio.create_task(self._answer_all())
        return await one.answer

    async def _answer_all(self) -> None:
        while self._waiting:
            k = self._waiting[0].k
            batch = [one for one in self._waiting if one.k == k][:MOST_TEXTS]
            chosen = set(map(id, batch))
            self._waiting = [one for one in self._waiting if id(one) not in chosen]
            await self._answer(batch, k)
        self._drain = None

    async def _answer(self, batch: Sequence[_Waiting], k: int) -> None:
        loop, texts = asyncio.get_running_loop(), [one.text for one in batch]
        try:
            answers = await loop.run_in_executor(self._thread, self._rank, texts, k)
        except Exception as problem:
            for one in batch:
                one.answer.set_exception(problem)
            return
        for one, answer in zip(batch, answers, strict=True):
            one.answer.set_result(answer)


async def _body(request: Request) -> bytes:
    """The whole body of a request, of at most `LARGEST` bytes. Raises HTTPException, or ClientDisconnect."""
    parts, size = [], 0
    stated = request.headers.get("Content-Length", "0")
    if int(stated) > LARGEST:  # a number, or h11 has refused it
        raise HTTPException(413, f"found a body of {stated[:20]} bytes, expected at most {LARGEST:,}")
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                parts.append(part)
                if (size := size + len(part)) > LARGEST:
                    raise HTTPException(413, f"found a body of over {LARGEST:,} bytes")
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {PATIENCE} seconds", {"Connection": "close"}
        ) from None
    return b"".join(parts)


def _asked(body: bytes, k: int) -> tuple[str, int]:
    """Text and number of labels of a request's form. Raises HTTPException in plain words."""
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        reason = f"found a body that is no form in UTF-8 of at most {MOST_FIELDS:,} fields"
        raise HTTPException(400, reason) from None
    if "text" not in form:
        raise HTTPException(400, "found no `text` in the form")
    limit = form.get("limit", [str(k)])[0]
    if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= MOST_LABELS):
        raise HTTPException(400, f"limit: found {limit[:20]!r}, expected a number from 1 to {MOST_LABELS:,}")
    return form["text"][0], int(limit)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    return Response(data, status, headers, "application/json; charset=utf-8")


def _line(problem: Exception) -> str:
    return " ".join(text_of(problem).split())[:200]
