"""A process that fits and loads a method for a check: `python -m xmcbench.runs.conformance.second_process TASK`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from xmcbench.runs.conformance.rules import BrokenRuleError
from xmcbench.runs.conformance.tiny_trial import TinyTrial
from xmcbench.trial.predictions import Predictions

LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Task:
    """Fit the method of a trial and predict; also load a saved model and predict. Worker `rank` of `size`."""

    trial: TinyTrial
    k: int
    result: Path
    model: Path | None = None
    rank: int = 0
    size: int = 1


TASK = TypeAdapter(Task)


def run_tasks(tasks: Sequence[Task], environment: Mapping[str, str]) -> dict[str, Predictions]:
    """Run tasks side by side, each in a process; the predictions of the first, by "fitted" and "loaded"."""
    command = [sys.executable, "-P", "-m", "xmcbench.runs.conformance.second_process"]
    processes = [
        subprocess.Popen(
            [*command, TASK.dump_json(task).decode()],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in tasks
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
            if process.returncode:
                lines = [line for line in errors.splitlines() if line.strip()] or ["no message"]
                raise BrokenRuleError(f"the process ended with code {process.returncode}: {lines[-1]}")
    except subprocess.TimeoutExpired:
        raise BrokenRuleError(f"no answer within {LIMIT_SECONDS} seconds") from None
    finally:
        for process in processes:
            process.kill()
    with np.load(tasks[0].result, allow_pickle=False) as arrays:
        names = {name.partition(".")[0] for name in arrays.files}
        return {name: Predictions(arrays[f"{name}.indices"], arrays[f"{name}.scores"]) for name in names}


def main(text: str) -> None:
    """Carry out a task, and write its predictions."""
    task = TASK.validate_json(text)
    texts = list(task.trial.dataset.test.texts)
    method = task.trial.build()
    if task.size > 1:
        from xmcbench.engine.workers import joined

        group: Any = joined(task.rank, task.size, task.result.with_name("meeting"))
    else:
        group = nullcontext()
    with group:
        task.trial.fit(method)
    if task.rank > 0:
        return
    found = {"fitted": method.predict(texts, task.k)}
    if task.model:
        loaded = task.trial.build()
        loaded.load(task.model)
        found["loaded"] = loaded.predict(texts, task.k)
    arrays: dict[str, Any] = {}
    for name, predictions in found.items():
        arrays |= {f"{name}.indices": predictions.indices, f"{name}.scores": predictions.scores}
    np.savez(task.result, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
