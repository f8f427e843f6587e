"""An endpoint that speaks the OpenAI protocol in a process of its own, answers by looking, and fails as it is told to.

`python server.py PORT LOG FAULT LAST`. What it answered goes into LOG, a line a pair: a list of document and label. The
label is relevant where a word of it is in the document. A fault befalls every prompt the first time it is asked. It is
killed once it has answered LAST pairs, 0 for never.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

# Faults that befall a prompt each time.
ALWAYS = {"401", "404", "parameter", "too long", "filter", "half", "chatter", "thinks", "apart", "rambles"}
ALWAYS |= {"other model"}
LIES = {"401", "404", "longer", "no usage", "much usage", "negative"}  # of a server of embeddings, each time
ERRORS = {
    "401": {"message": "wrong key {key}", "code": "invalid_api_key"},
    "404": {"message": "The model `m` does not exist.", "code": "model_not_found"},
    "parameter": {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "param": "max_tokens",
        "code": "unsupported_parameter",
    },
    "too long": {"message": "This model's maximum context length is 9 tokens.", "code": "context_length_exceeded"},
}
REFUSED = "number 3"  # in the documents whose prompts are too long, or filtered
ONE = re.compile(r"^DOC (?P<document>.*) LABEL (?P<label>.*)$", re.DOTALL)
SEVERAL = re.compile(r"^DOC (?P<document>.*) LABELS\n(?P<labels>.*)$", re.DOTALL)
WRITE = re.compile(r"^WRITE FOR (?P<document>.*)$", re.DOTALL)
PATIENCE = 300.0  # seconds until it listens
PROMPT_ONE = "DOC {document} LABEL {label}"
PROMPT_SEVERAL = "DOC {document} LABELS\n{labels}"
PROMPT_WRITE = "WRITE FOR {document}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    fault = ""
    log: Path
    seen: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()
    said = 0
    last = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "input" in body:
            return self.embed(body["input"])
        prompt = body["messages"][-1]["content"]
        with self.lock:
            self.seen[prompt] += 1
            with self.log.with_suffix(".asked").open("a") as log:
                log.write("x")
            first = self.seen[prompt] == 1
        pairs, text = answer(prompt)
        fault = self.fault if first or self.fault in ALWAYS else ""
        if fault in ("too long", "filter") and REFUSED not in prompt:
            fault = ""
        if fault == "parameter" and "max_tokens" not in body:
            fault = ""
        if fault in ("429", "500", "503"):
            return self.reply(int(fault), json.dumps({"error": {"message": "not now"}}))
        if fault in ERRORS:
            error = {k: v.replace("{key}", str(self.headers["authorization"])) for k, v in ERRORS[fault].items()}
            return self.reply(int(fault) if fault.isdigit() else 400, json.dumps({"error": error}))
        if fault == "garbage":
            return self.reply(200, '{"choices": [{"mess')
        if fault == "html":
            return self.reply(200, "<html>Bad gateway</html>", "text/html")
        if fault == "empty":
            return self.reply(200, '{"choices": []}')
        if fault == "hang":
            time.sleep(30)
        if fault == "slow":
            time.sleep(0.2)
        if fault == "half":
            text = "\n".join(text.splitlines()[: len(pairs) // 2])
        if fault == "chatter":
            text = "It depends on what you mean."
        thoughts, finish = "", "stop"
        if fault in ("thinks", "apart", "rambles"):
            thoughts = f"Is it? Yes or no? Not yes. {prompt} "
            room = int(body["max_tokens"])
            if fault == "rambles" or len(thoughts) > room:
                thoughts, text, finish = thoughts[:room], "", "length"
            elif fault == "thinks":
                thoughts, text = "", f"<think>{thoughts}</think>\n\nNo doubt is left. {text}"
        if fault == "rambles":
            thoughts, text = "", f"<think>{thoughts}"
        if fault == "filter":
            text, finish = "", "content_filter"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text), "total_tokens": len(prompt) + len(text)}
        said = {"role": "assistant", "content": text} | ({"reasoning_content": thoughts} if thoughts else {})
        message: dict[str, Any] = {"index": 0, "finish_reason": finish, "message": said}
        if body.get("logprobs"):
            message["logprobs"] = {"content": [{"token": text, "logprob": -0.5, "top_logprobs": []}]}
        model = "another-model" if fault == "other model" else body["model"]
        completion = {"id": "1", "object": "chat.completion", "model": model, "choices": [message], "usage": usage}
        content = json.dumps(completion)
        if fault == "cut":
            return self.reply(200, content, cut=len(content) // 2)
        with self.lock:  # killed here or there, it has logged what it said, and nothing else
            with self.log.open("a") as log:
                log.writelines(json.dumps(pair) + "\n" for pair in pairs)
            self.reply(200, content)
            type(self).said += len(pairs)
            if self.last and self.said >= self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    def embed(self, texts: list[str]) -> None:
        """A vector for each text, the last text first: how often each of three letters is in it."""
        with self.lock:
            self.seen[json.dumps(texts)] += 1
            fault = self.fault if self.seen[json.dumps(texts)] == 1 or self.fault in LIES else ""
            with self.log.with_suffix(".asked").open("a") as log:
                log.write("x")
        if fault.isdigit():
            error = ERRORS.get(fault, {"message": "not now"})
            return self.reply(int(fault), json.dumps({"error": error}))
        if fault == "slow":
            time.sleep(0.1)
        vectors = [[float(text.count(letter)) for letter in "aeo"] for text in texts]
        if fault == "nan":
            vectors[0][0] = float("nan")
        if fault == "longer":
            vectors = [[*vector, 1.0] for vector in vectors]
        rows = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)][::-1]
        if fault == "few":
            rows = rows[1:]
        told = {"no usage": 0, "much usage": 10**9, "negative": -5}.get(fault, sum(map(tokens_of, texts)))
        usage = {"prompt_tokens": told, "total_tokens": told}
        with self.lock:
            with self.log.open("a") as log:
                log.writelines(json.dumps([text, "embedding"]) + "\n" for text in texts)
            content = "not JSON" if fault == "garbage" else json.dumps({"model": "m", "data": rows, "usage": usage})
            self.reply(200, content)
            type(self).said += len(texts)
            if self.last and self.said >= self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    def reply(self, status: int, content: str, kind: str = "application/json", cut: int | None = None) -> None:
        data = content.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def answer(prompt: str) -> tuple[list[tuple[str, str]], str]:
    """The pairs that a prompt asks about, and what to say; what is written about a document counts as its label."""
    if found := WRITE.match(prompt):
        text = "\n".join(f"{number}. {part}" for number, part in enumerate(found["document"].split()[:4], 1))
        return [(found["document"], text)], text
    if found := ONE.match(prompt):
        pairs = [(found["document"], found["label"])]
        return pairs, word(*pairs[0]).capitalize() + "."
    found = SEVERAL.match(prompt)
    assert found is not None, prompt
    lines = [line.partition(". ") for line in found["labels"].splitlines()]
    pairs = [(found["document"], label) for _, _, label in lines]
    return pairs, "\n".join(f"{number}. {word(*pair)}" for (number, _, _), pair in zip(lines, pairs, strict=True))


def word(document: str, label: str) -> str:
    known = document.split()
    return "maybe" if label == "unclear" else "yes" if any(part in known for part in label.split()) else "no"


def tokens_of(text: str) -> int:
    """The tokens that the server counts in a text to embed."""
    return 1 + len(text.split())


class Server:
    """The endpoint as a test sees it: it can be started on its port, killed, and started again."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, fault: str = "", last: int = 0) -> None:
        self.kill()  # one that killed itself may hold the port for a moment
        command = [sys.executable, __file__, str(self.port), str(self.log), fault, str(last)]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise TimeoutError("the server did not start")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def asked(self) -> int:
        """How many requests came in."""
        log = self.log.with_suffix(".asked")
        return len(log.read_text()) if log.exists() else 0

    def answered(self) -> Counter[tuple[str, str]]:
        """How often each pair was answered."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter((document, label) for document, label in map(json.loads, lines))


if __name__ == "__main__":
    port, Handler.log, Handler.fault, Handler.last = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    ThreadingHTTPServer.request_queue_size = 128  # a busy machine accepts late: with five, further ones are reset
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
