"""Asks a fitted method for its predictions on the test split, and again for those of a sample, to compare them.

That a saved model is complete is tested in a process that is forked before training: it starts at no cost, with all
modules that this process has imported, and holds nothing that `fit` made.

Legend: N test queries, S sampled queries, K predicted labels.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy

from xmcbench.data.dataset import Texts
from xmcbench.errors import place_of
from xmcbench.errors.secrets import beginning
from xmcbench.evaluation import InvalidPredictions, check_predictions, drop_ignored
from xmcbench.runs.file_guard import BrokenContractError, Guard, guarded
from xmcbench.trial.meter import Meter, metering
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import STORED, Predictions, found_by
from xmcbench.trial.run import TrainingLog, derive_seed

SAMPLE = 32
# Scores may differ by rounding (another batch, another number of threads, bf16): by this share of a row's range.
TOLERANCE = 0.02
# An approximate search may miss labels, and others each time that its index is built: this share of a row.
MISSES = 0.1


@dataclass(frozen=True)
class Sample:
    """S test queries, and what the method predicted for them in one call with all other test queries."""

    texts: list[str]
    predictions: Predictions

    @classmethod
    def draw(cls, texts: Texts, predictions: Predictions) -> Sample:
        """`SAMPLE` queries at equal distances, with their best `STORED` labels."""
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int))
        return cls(
            [texts[int(row)] for row in rows],
            Predictions(predictions.indices[rows, :STORED], predictions.scores[rows, :STORED]),
        )

    def check_order(self, method: Method) -> None:
        """Raise `BrokenContractError` if the sample alone, in reverse order, gets other predictions."""
        predictions = method.predict(self.texts[::-1], self.predictions.k)
        again = Predictions(predictions.indices[::-1], predictions.scores[::-1])
        self._compare(again, "depend on the other queries of the call or on their order")

    def check_saved(self, predictions: Predictions) -> None:
        """Raise `BrokenContractError` if `predictions`, of the saved model for `texts`, are others."""
        self._compare(predictions, "differ from those of the saved model, loaded again")

    def recall(self, method: Method) -> float | None:
        """The share of the best labels of exact search that are predicted; None where the method's search is exact."""
        exact = method.predict_exactly(self.texts, self.predictions.k)
        if exact is None:
            return None
        return float(found_by(self.predictions, exact).mean())

    def _compare(self, again: Predictions, problem: str) -> None:
        shape, expected = again.indices.shape, self.predictions.indices.shape
        if shape != expected:
            raise BrokenContractError(f"predictions {problem}: found the shape {shape}, expected {expected}")
        wrong_S = differs(self.predictions, again)
        if wrong_S.any():
            query = int(np.argmax(wrong_S))
            raise BrokenContractError(
                f"predictions {problem}: {beginning(self.texts[query], 60)!r} gets {_best(self.predictions, query)}, "
                f"then {_best(again, query)}"
            )


@contextmanager
def untrained(call: str) -> Iterator[Meter]:
    """Count what happens in the block. Raises `BrokenContractError` if the method's `call` trains there."""
    with metering() as meter:
        yield meter
    if meter.updates:
        raise BrokenContractError(f"{call} trained: only what fit learns is charged to the budget")


def ask(method: Method, texts: list[str], k: int) -> Predictions:
    """What the method predicts. Raises `InvalidPredictions` for another type or shape than [N, k]."""
    predictions = method.predict(texts, k)
    if not isinstance(predictions, Predictions):
        raise InvalidPredictions(f"predict returned {type(predictions).__name__}, expected xmcbench.Predictions")
    if predictions.indices.shape != (len(texts), k):
        raise InvalidPredictions(
            f"predictions are of shape {predictions.indices.shape}, expected (queries, k) = {(len(texts), k)}"
        )
    return predictions


def predict_test(method: Method, texts: Texts, ignore: scipy.sparse.csr_array) -> tuple[Predictions, Sample]:
    """The best labels of every test query, without the pairs in `ignore` [N, L], and a sample to be predicted again.

    Queries are shuffled first, so that their order tells the method nothing. Raises `InvalidPredictions`.
    """
    num_labels = ignore.shape[1]
    order = np.random.default_rng(derive_seed(0, "test order")).permutation(len(texts))
    most_ignored = int(np.diff(ignore.indptr).max(initial=0))
    shuffled = ask(method, [texts[int(i)] for i in order], min(num_labels, STORED + most_ignored))
    back = np.argsort(order)
    predictions = Predictions(shuffled.indices[back], shuffled.scores[back])
    check_predictions(predictions, *ignore.shape)
    if predictions.indices.dtype != np.int32 or predictions.scores.dtype != np.float32:  # as they are stored
        predictions = Predictions(predictions.indices.astype(np.int32), predictions.scores.astype(np.float32))
        check_predictions(predictions, *ignore.shape)
    return drop_ignored(predictions, ignore, min(STORED, num_labels)), Sample.draw(texts, predictions)


def differs(first: Predictions, second: Predictions) -> np.ndarray:
    """Which rows differ by more than rounding: bool [S]."""
    either: np.ndarray = _contradicts(first, second) | _contradicts(second, first)
    return either


def _contradicts(first: Predictions, second: Predictions) -> np.ndarray:
    """Which rows of `first` have a label that `second` scores otherwise, or too many that it lacks: bool [S]."""
    valid_SK = first.indices >= 0
    scores_SK = np.where(valid_SK, first.scores, 0.0)
    lowest_S, highest_S = (np.where(valid_SK, first.scores, edge).astype(float) for edge in (np.inf, -np.inf))
    range_S = np.where(valid_SK.any(axis=1), highest_S.max(axis=1) - lowest_S.min(axis=1), 0.0)
    slack_S1 = (TOLERANCE * range_S + 1e-4 * np.abs(scores_SK).max(axis=1, initial=0.0) + 1e-6)[:, None]
    same_SKK = first.indices[:, :, None] == second.indices[:, None, :]
    in_both_SK = valid_SK & same_SKK.any(axis=2)
    other_SK = np.where(same_SKK, second.scores[:, None, :], -np.inf).max(axis=2, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        rescored_SK = in_both_SK & ~(np.abs(scores_SK - other_SK) <= slack_S1)
    # A label that `second` lacks scores at most as high there as its last label.
    last_S1 = np.where(second.indices >= 0, second.scores, -np.inf)[:, -1:]
    missing_SK = valid_SK & ~in_both_SK & (scores_SK > last_S1 + slack_S1)
    return np.asarray(rescored_SK.any(axis=1) | (missing_SK.sum(axis=1) > MISSES * valid_SK.sum(axis=1)))


def _best(predictions: Predictions, query: int) -> str:
    pairs = zip(predictions.indices[query, :3], predictions.scores[query, :3], strict=True)
    return ", ".join(f"{label}:{score:.4g}" for label, score in pairs)


TIMEOUT_SECONDS = 600
DONE, FAILED = b"=", b"!"  # how an answer begins


# Answers embedders in a block. The folder keeps what is charged, the log and the list receive costs and teachers.
Embedders = Callable[[Path, TrainingLog, list[Any]], AbstractContextManager[None]]


class FreshProcess:
    """A forked process that waits, then loads one model and predicts with it. It ends when this process ends.

    What its embedders ask is in the store: it has been charged to the trial.
    """

    def __init__(self, build: Callable[[], Method], embedders: Embedders) -> None:
        self._pipe, theirs = Pipe()
        self._process = get_context("fork").Process(target=_serve, args=(build, embedders, theirs, self._pipe))
        self._process.start()
        theirs.close()

    def ask(self, model: Path, texts: list[str], k: int, home: Path, closed: Sequence[Path]) -> None:
        """Have the model in the folder `model` predict; `answer` fetches the answer.

        `home` is the process's home and cache. It must not open the folders `closed`: a model is all in its folder.
        """
        task: dict[str, Any] = {"model": str(model), "texts": texts, "k": k, "home": str(home)}
        with suppress(ConnectionError):  # it has ended, and `answer` says so
            self._pipe.send_bytes(json.dumps(task | {"closed": [str(path) for path in closed]}).encode())

    def answer(self) -> Predictions:
        """The predictions, once they are there. Raises `BrokenContractError` if the model cannot be loaded."""
        try:
            late = f"no answer within {TIMEOUT_SECONDS} seconds".encode()
            reply = self._pipe.recv_bytes() if self._pipe.poll(TIMEOUT_SECONDS) else FAILED + late
        except (EOFError, ConnectionError):
            reply = FAILED + b"the process that loaded it ended early"
        if not reply.startswith(DONE):
            raise BrokenContractError(f"the saved model cannot be used: {reply[1:].decode(errors='replace')}")
        with np.load(BytesIO(reply[1:]), allow_pickle=False) as arrays:
            return Predictions(arrays["indices"], arrays["scores"])

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(build: Callable[[], Method], embedders: Embedders, pipe: Connection, other: Connection) -> NoReturn:
    """Answer one question in the forked process, then leave without exit handlers; `other` is its parent's end."""
    other.close()
    method: Method | None = None
    try:
        task = json.loads(pipe.recv_bytes())
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a forked process cannot use the GPU of its parent
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # threads that the parent may have started do not exist here
        os.environ |= {"HOME": task["home"], "XMCBENCH_CACHE": task["home"]}
        method, content = build(), BytesIO()
        guard, asking = Guard("the loaded model", [Path(path) for path in task["closed"]]), Path(task["home"]) / "asked"
        with guarded(guard), untrained("load"), embedders(asking, TrainingLog(), []):
            method.load(Path(task["model"]))
            predictions = method.predict(task["texts"], task["k"])
        np.savez(content, indices=predictions.indices, scores=predictions.scores)
        pipe.send_bytes(DONE + content.getvalue())
    except EOFError:  # nobody asks
        pass
    except BaseException as problem:
        traceback.print_exc()
        sys.stderr.flush()
        text = beginning(" ".join(f"{type(problem).__name__}: {problem}".split()), 2000)
        with suppress(OSError, TypeError):
            kinds = [kind for kind in type(method).__mro__ if kind.__module__.partition(".")[0] != "xmcbench"]
            text += f" ({place_of(problem, [Path(inspect.getfile(kind)) for kind in kinds if kind is not object])})"
        pipe.send_bytes(FAILED + text.encode(errors="replace"))
    finally:
        os._exit(0)
