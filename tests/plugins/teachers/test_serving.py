"""Against a real server: `transformers serve` with a tiny model says over HTTP what the model says here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from fakes.bench import Bench
from transformers import AutoModelForCausalLM, AutoTokenizer

from xmcbench.plugins.registry import registry
from xmcbench.teachers import NO, YES, TeacherError
from xmcbench.teachers.prompts import read_answer
from xmcbench.trial.record import Status
from xmcbench_plugins.teachers.endpoint import Endpoint

from .desk import DOCUMENTS, LABELS, Desk, every_pair
from .test_lmtx import run

PATIENCE = 600.0  # seconds until it serves: it imports torch
PAIRS = every_pair(5, 4)
WRITE = "document = {document}. Which tags?"
TEMPLATE = "document = {document}. Is {label} relevant? yes or no"


@pytest.fixture
def opinionated(chat_model: Path, tmp_path: Path) -> Path:
    """The model made to say yes to some prompts and no to the others, as a direction of its last states decides."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(chat_model), AutoTokenizer.from_pretrained(chat_model)
    states = torch.stack([model.model(input_ids=ids).last_hidden_state[0, -1] for ids in questions(tokenizer)]).detach()
    mean = states.mean(0)
    direction = torch.linalg.svd(states - mean).Vh[0]
    direction -= (direction @ mean) / (mean @ mean) * mean
    with torch.no_grad():
        model.lm_head.weight.zero_()
        for word, sign in (("yes", 1), ("no", -1)):
            model.lm_head.weight[tokenizer(word)["input_ids"][0]] = sign * direction
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def questions(tokenizer: Any) -> list[torch.Tensor]:
    """The tokens of the question about each pair."""
    turns = [
        [{"role": "user", "content": TEMPLATE.format(document=DOCUMENTS[d], label=LABELS[label])}]
        for d, label in zip(*PAIRS, strict=True)
    ]
    return [
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        for turn in turns
    ]


@pytest.fixture
def served(opinionated: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of `transformers serve`, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["transformers", "serve", str(opinionated), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=30):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError("transformers serve does not serve")


def by_hand(folder: Path) -> list[str]:
    """The one token that the model writes after each question."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        best = [int(model(input_ids=ids).logits[0, -1].argmax()) for ids in questions(tokenizer)]
    return [tokenizer.decode([token]) for token in best]


def written_by_hand(folder: Path, document: str, tokens: int) -> str:
    """What the model writes to the prompt `WRITE`, its most probable token each time."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": WRITE.format(document=document)}]
    ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        for _ in range(tokens):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    return str(tokenizer.decode(ids[0, -tokens:]))


@pytest.mark.slow
def test_a_served_model_answers_as_it_does_here_and_what_it_said_outlives_it(
    served: tuple[str, subprocess.Popen[bytes]],
    opinionated: Path,
    small_encoder: str,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, process = served
    settings = {"model": str(opinionated), "prompt": TEMPLATE, "answer_tokens": 1, "concurrency": 2, "retries": 0}
    teacher = Endpoint.Config.model_validate(settings | {"name": "openai", "base_url": url})
    desk = Desk(bench.root)
    found = desk.judge(Endpoint(teacher))(*PAIRS)
    assert found.answers.tolist() == [read_answer(text) for text in by_hand(opinionated)]
    assert set(found.answers.tolist()) == {YES, NO}
    assert desk.ledger.teacher_completion_tokens == len(PAIRS[0])
    assert desk.ledger.teacher_prompt_tokens > len(PAIRS[0]) * 10

    written = Desk(bench.root, "writing").judge(Endpoint(teacher)).write(np.arange(3), WRITE, 3)
    assert written == [written_by_hand(opinionated, document, 3) for document in DOCUMENTS[:3]]

    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    registry.cache_clear()
    record, predicted = run(bench, url, small_encoder, **settings)
    assert record.status is Status.OK
    assert record.teacher == f"openai {opinionated}, served as {opinionated}@main"

    process.kill()
    process.wait()
    shutil.rmtree(bench.store.directory(record.key))
    again, repeated = run(bench, url, small_encoder, **settings)
    assert np.array_equal(repeated, predicted)
    assert again.spent["teacher_cached"] == again.spent["teacher_calls"] == record.spent["teacher_calls"]
    with pytest.raises(TeacherError, match="does not answer after 1 tries"):
        Desk(bench.root, "other").judge(Endpoint(teacher))(*every_pair(6, 4))
