"""A sample of queries, predicted again: in another order, and by the saved model in a process that knows nothing else.

Legend: S sampled queries, K predicted labels.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import numpy as np

from xmcbench.data.dataset import Texts
from xmcbench.run.file_guard import BrokenContractError
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions

SAMPLE = 32
# Scores of one query may differ by rounding (another batch, another thread count, bf16): shares of a row's range.
TOLERANCE = 0.02
# Packages import these parts late, when a model is built. The trial needs them anyway; imported before the split, the
# second process does not import them again.
SLOW_IMPORTS = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


@dataclass(frozen=True)
class Sample:
    """Some test queries, and what the method predicted for them among all others."""

    texts: list[str]
    predictions: Predictions

    @classmethod
    def draw(cls, texts: Texts, predictions: Predictions) -> Sample:
        """`SAMPLE` of the queries, spread evenly; the same ones every time."""
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int))
        chosen = Predictions(predictions.indices[rows], predictions.scores[rows])
        return cls([texts[int(row)] for row in rows], chosen)

    def check_order(self, method: Method) -> None:
        """Raise `BrokenContractError` where the queries, alone and in reverse, are answered otherwise."""
        again = method.predict(self.texts[::-1], self.predictions.k)
        self.check(again, reverse=True, rule="depends on the other queries of the call, or on their order")

    def check_saved(self, predict: Callable[[list[str], int], Predictions]) -> None:
        """Raise `BrokenContractError` where the saved model answers otherwise."""
        self.check(predict(self.texts, self.predictions.k), rule="is not that of the saved model, loaded again")

    def check(self, again: Predictions, rule: str, reverse: bool = False) -> None:
        step = -1 if reverse else 1
        again = Predictions(again.indices[::step], again.scores[::step])
        if again.indices.shape != self.predictions.indices.shape:
            shape, expected = again.indices.shape, self.predictions.indices.shape
            raise BrokenContractError(f"an answer {rule}: found the shape {shape}, expected {expected}")
        broken = differs(self.predictions, again)
        if broken.any():
            query = int(np.argmax(broken))
            raise BrokenContractError(
                f"the answer to a query {rule}: {self.texts[query][:60]!r} gets {_best(self.predictions, query)}, "
                f"then {_best(again, query)}"
            )


def differs(first: Predictions, second: Predictions) -> np.ndarray:
    """Which rows say other things beyond rounding: bool [S]."""
    either: np.ndarray = _contradicts(first, second) | _contradicts(second, first)
    return either


def _contradicts(first: Predictions, second: Predictions) -> np.ndarray:
    """Rows of `first` with a label that `second` scores otherwise, or lacks although it scores well: bool [S]."""
    held_SK = first.indices >= 0
    scores_SK = np.where(held_SK, first.scores, 0.0)
    lowest_S, highest_S = (np.where(held_SK, first.scores, edge).astype(float) for edge in (np.inf, -np.inf))
    range_S = np.where(held_SK.any(axis=1), highest_S.max(axis=1) - lowest_S.min(axis=1), 0.0)
    slack_S1 = (TOLERANCE * range_S + 1e-4 * np.abs(scores_SK).max(axis=1, initial=0.0) + 1e-6)[:, None]
    same_SKK = first.indices[:, :, None] == second.indices[:, None, :]
    other_SK = np.where(same_SKK, second.scores[:, None, :], -np.inf).max(axis=2, initial=-np.inf)
    last_S1 = np.where(second.indices >= 0, second.scores, -np.inf)[:, -1:]  # what it lacks scores no more than this
    other_SK = np.where(same_SKK.any(axis=2), other_SK, np.minimum(scores_SK, last_S1))
    with np.errstate(invalid="ignore"):
        broken_SK: np.ndarray = held_SK & ~(np.abs(scores_SK - other_SK) <= slack_S1)
    return np.asarray(broken_SK.any(axis=1))


def _best(predictions: Predictions, query: int) -> str:
    pairs = zip(predictions.indices[query, :3], predictions.scores[query, :3], strict=True)
    return ", ".join(f"{label}:{score:.4g}" for label, score in pairs)


class SavedModelProcess:
    """A process that is split off before training and waits: all it will know of the trial is the saved model.

    It costs no import, since it begins with what this process has imported, and ends when this process does.
    """

    def __init__(self, build: Callable[[], Method]) -> None:
        for module in SLOW_IMPORTS:
            if module.partition(".")[0] in sys.modules:
                import_module(module)
        read, self._ask = os.pipe()
        self._answer, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._answer)
            _serve(build, read, write)
        os.close(read)
        os.close(write)

    def predict(self, model: Path, texts: list[str], k: int) -> Predictions:
        """The predictions of the model saved in `model`. Raises `BrokenContractError` where it cannot be loaded."""
        with tempfile.TemporaryDirectory(prefix="xmcbench-") as folder:
            question, answer = Path(folder) / "question.json", Path(folder) / "answer.npz"
            question.write_text(json.dumps({"model": str(model), "texts": texts, "k": k, "answer": str(answer)}))
            os.write(self._ask, f"{question}\n".encode())
            problem = b""
            while part := os.read(self._answer, 65536):
                problem += part
            if problem or not answer.exists():
                reason = problem.decode(errors="replace") or "the process that loaded it ended early"
                raise BrokenContractError(f"the saved model cannot be used: {reason}")
            with np.load(answer, allow_pickle=False) as arrays:
                return Predictions(arrays["indices"], arrays["scores"])

    def close(self) -> None:
        """End the process."""
        for descriptor in (self._ask, self._answer):
            os.close(descriptor)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(build: Callable[[], Method], read: int, write: int) -> NoReturn:
    """Answer one question, in the child; it leaves without what a process does at its end."""
    try:
        with os.fdopen(read) as pipe:
            path = pipe.readline().strip()
        if path:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the trial's process has the GPU's memory
            question = json.loads(Path(path).read_bytes())
            method = build()
            method.load(Path(question["model"]))
            found = method.predict(question["texts"], question["k"])
            np.savez(question["answer"], indices=found.indices, scores=found.scores)
    except BaseException as problem:
        traceback.print_exc()
        sys.stderr.flush()
        os.write(write, " ".join(f"{type(problem).__name__}: {problem}".split())[:2000].encode())
    finally:
        os._exit(0)
