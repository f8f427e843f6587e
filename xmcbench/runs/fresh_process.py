"""A process that knows nothing of the training, to test that a saved model is complete.

It is forked before training. It therefore starts at no cost, with all modules that this process has imported, and holds
nothing that `fit` made.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from xmcbench.runs.file_guard import BrokenContractError, forbid
from xmcbench.runs.predicting import untrained
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions

TIMEOUT_SECONDS = 600


class FreshProcess:
    """A forked process that waits, then loads one model and predicts with it. It ends when this process ends."""

    def __init__(self, build: Callable[[], Method]) -> None:
        question, self._question = os.pipe()
        self._answer, answer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._question)
            os.close(self._answer)
            _serve(build, question, answer)
        os.close(question)
        os.close(answer)

    def ask(self, model: Path, texts: list[str], k: int, home: Path, closed: Sequence[Path]) -> None:
        """Have the model in the folder `model` predict. `answer` fetches the answer; both use files in `home`.

        That is the process's home and cache. It must not open the folders `closed`: a model is all in its folder.
        """
        self._result = home / "result.npz"
        task: dict[str, Any] = {"model": str(model), "texts": texts, "k": k, "result": str(self._result)}
        task |= {"home": str(home), "closed": [str(path) for path in closed]}
        path = home / "task.json"
        path.write_text(json.dumps(task))
        os.write(self._question, f"{path}\n".encode())

    def answer(self) -> Predictions:
        """The predictions, once they are there. Raises `BrokenContractError` if the model cannot be loaded."""
        problem = self._read_problem()
        if problem or not self._result.exists():
            reason = problem or "the process that loaded it ended early"
            raise BrokenContractError(f"the saved model cannot be used: {reason}")
        with np.load(self._result, allow_pickle=False) as arrays:
            return Predictions(arrays["indices"], arrays["scores"])

    def _read_problem(self) -> str:
        """The report of the process: empty if it succeeded."""
        parts: list[bytes] = []
        while True:
            if not select.select([self._answer], [], [], TIMEOUT_SECONDS)[0]:
                return f"no answer within {TIMEOUT_SECONDS} seconds"
            if not (part := os.read(self._answer, 65536)):
                return b"".join(parts).decode(errors="replace")
            parts.append(part)

    def close(self) -> None:
        """End the process."""
        for descriptor in (self._question, self._answer):
            os.close(descriptor)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(build: Callable[[], Method], question: int, answer: int) -> NoReturn:
    """Answer one question in the forked process, then leave without the exit handlers of its parent."""
    try:
        with os.fdopen(question) as pipe:
            path = pipe.readline().strip()
        if path:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a forked process cannot use the GPU of its parent
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)  # threads that the parent may have started do not exist here
            task = json.loads(Path(path).read_bytes())
            os.environ |= {"HOME": task["home"], "XMCBENCH_CACHE": task["home"]}
            method = build()
            with forbid([Path(path) for path in task["closed"]], "the loaded model"), untrained("load"):
                method.load(Path(task["model"]))
                predictions = method.predict(task["texts"], task["k"])
            np.savez(task["result"], indices=predictions.indices, scores=predictions.scores)
    except BaseException as problem:
        traceback.print_exc()
        sys.stderr.flush()
        os.write(answer, " ".join(f"{type(problem).__name__}: {problem}".split())[:2000].encode())
    finally:
        os._exit(0)
