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
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import numpy as np

from xmcbench.run.file_guard import BrokenContractError
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions

TIMEOUT_SECONDS = 600
# transformers imports these modules when a model is built. The trial needs them anyway. Imported before the fork, they
# are not imported a second time in the forked process.
LATE_IMPORTS = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


class FreshProcess:
    """A forked process that waits, then loads one model and predicts with it. It ends when this process ends."""

    def __init__(self, build: Callable[[], Method]) -> None:
        for module in LATE_IMPORTS:
            if module.partition(".")[0] in sys.modules:
                import_module(module)
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

    def predict(self, model: Path, texts: list[str], k: int) -> Predictions:
        """The predictions of the model in the folder `model`. Raises `BrokenContractError` if it cannot be loaded."""
        with tempfile.TemporaryDirectory(prefix="xmcbench-") as name:
            task, result = Path(name) / "task.json", Path(name) / "result.npz"
            task.write_text(json.dumps({"model": str(model), "texts": texts, "k": k, "result": str(result)}))
            os.write(self._question, f"{task}\n".encode())
            problem = self._read_problem()
            if problem or not result.exists():
                reason = problem or "the process that loaded it ended early"
                raise BrokenContractError(f"the saved model cannot be used: {reason}")
            with np.load(result, allow_pickle=False) as arrays:
                return Predictions(arrays["indices"], arrays["scores"])

    def _read_problem(self) -> str:
        """What the process reports before it ends: nothing if it succeeded."""
        parts = []
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
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the parent holds the GPU's memory
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(1)  # threads that the parent may have started do not exist here
            task = json.loads(Path(path).read_bytes())
            method = build()
            method.load(Path(task["model"]))
            found = method.predict(task["texts"], task["k"])
            np.savez(task["result"], indices=found.indices, scores=found.scores)
    except BaseException as problem:
        traceback.print_exc()
        sys.stderr.flush()
        os.write(answer, " ".join(f"{type(problem).__name__}: {problem}".split())[:2000].encode())
    finally:
        os._exit(0)
