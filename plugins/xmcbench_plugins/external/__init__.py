"""Methods in any language: a command line that reads a prepared folder and writes predictions.

Files of the folder are described in README.md. Legend: T queries, L labels, K predicted labels.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy
from pydantic import Field, model_validator

from xmcbench import (
    Ledger,
    Method,
    MethodInfo,
    Predictions,
    Progress,
    Run,
    XMCBenchError,
    data,
    evaluation,
    hookimpl,
    programs,
)

PROGRAM = Path(__file__).parent / "program"  # modules that programs in Python may import
ENVIRONMENT = {"PYTHONPATH": str(PROGRAM), "PYTHONNOUSERSITE": "1"}
FLOPS = ("encoder_flops", "scoring_flops", "solver_flops")
CHARGED = ("epochs", "steps", "queries", "pool_labels", "encoder_tokens", *FLOPS)
WORD = re.compile(r"\w")  # of program/xmcbench_features.py
GRACE = 1.1  # a program may take this many times the seconds of the budget before it is ended


class OutsideMethod(Method):
    """A method that runs a program: `COMMAND fit FOLDER` trains, `COMMAND predict FOLDER` predicts."""

    learns_from_words: ClassVar[bool] = True
    """Whether a training row without a word, or without a label, teaches the program nothing."""

    plain_targets: ClassVar[bool] = True
    """Whether `targets.txt` is written too, for a language that does not read `targets.npz`."""

    _model: Path  # the folder of what the program learnt
    _num_labels: int
    _num_parameters = 0

    @abstractmethod
    def command(self) -> list[str]:
        """The words of the command line, before the stage and the folder."""

    def settings(self) -> dict[str, Any]:
        """Settings that the program reads from task.json."""
        return self.config.model_dump(mode="json")

    @property
    def saved_texts(self) -> str:
        return "what the program keeps of them, their words among it"

    @property
    def num_parameters(self) -> int:
        return self._num_parameters

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return True

    def fit(self, train: data.TrainingData, run: Run) -> None:
        """Write the training data, run the program, and charge its time, memory and what it reports as spent."""
        if self.learns_from_words:
            self._check_rows(train)
        folder = run.checkpoint / "program"
        self._model, self._num_labels = folder / "model", train.num_labels
        self._model.mkdir(parents=True, exist_ok=True)
        _write_texts(folder / "train.txt", train.texts)
        _write_texts(folder / "labels.txt", train.label_texts)
        scipy.sparse.save_npz(folder / "targets.npz", train.targets)
        scipy.sparse.save_npz(folder / "ignore.npz", train.ignore)
        if self.plain_targets:
            _write_targets(folder / "targets.txt", train.targets)
        budget = run.budget.limits()
        self._write_task(folder, stage="fit", seed=run.seed, budget=budget, num_train=len(train.texts))
        seconds = run.budget.device_seconds
        most = None if seconds is None else GRACE * seconds - run.ledger.device_seconds
        limit = "max_cpu_seconds" if run.ledger.clock == "processor" else "max_seconds"
        with run.ledger.stage("train"):
            usage = programs.run_program(
                [*self.command(), "fit", folder],
                Path.cwd(),
                ENVIRONMENT,
                **{limit: most},
                max_bytes=run.budget.peak_bytes,
                poll=_Reader(folder / "progress.jsonl", run.report).poll,
            )
        run.ledger.peak_bytes = max(run.ledger.peak_bytes, usage.peak_bytes)
        self._num_parameters = _charge(folder / "spent.json", run.ledger)

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        """Run the program on the texts and read its predictions [T, K], in any of the formats of `xmcbench score`."""
        with tempfile.TemporaryDirectory(prefix="xmcbench-") as name:
            folder = Path(name)
            (folder / "model").symlink_to(self._model.absolute())
            _write_texts(folder / "queries.txt", texts)
            self._write_task(folder, stage="predict", k=k, num_queries=len(texts))
            self._ask(folder)
            if len(files := sorted(folder.glob("predictions.*"))) != 1:
                names = ", ".join(path.name for path in files) or "none"
                raise XMCBenchError(f"{self.name}: found the files {names}, expected one predictions.*")
            return evaluation.read_predictions(files[0], len(texts), self._num_labels, k)

    def _ask(self, folder: Path) -> None:
        """Have the program predict for the queries in `folder`."""
        programs.run_program([*self.command(), "predict", folder], Path.cwd(), ENVIRONMENT)

    def save(self, directory: Path) -> None:
        shutil.copytree(self._model, directory / "program")
        facts = {"num_labels": self._num_labels, "num_parameters": self._num_parameters}
        (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")

    def load(self, directory: Path) -> None:
        facts = json.loads((directory / "facts.json").read_bytes())
        self._model = directory / "program"
        self._num_labels, self._num_parameters = facts["num_labels"], facts["num_parameters"]

    def _check_rows(self, train: data.TrainingData) -> None:
        """Say in the log how many rows teach nothing. Raises XMCBenchError where all are such."""
        total = len(train.texts)
        labels_N = np.asarray((train.targets - train.targets.multiply(train.ignore)).sum(axis=1))
        has_word = np.fromiter((WORD.search(text) is not None for text in train.texts), bool, total)
        has_label = labels_N.ravel() > 0
        if not (has_word & has_label).any():
            raise XMCBenchError(f"{train.card.name}: {self.name} finds no training text with a word and a label")
        if left_out := total - int((has_word & has_label).sum()):
            counts = f"{total - int(has_word.sum()):,} without a word, {total - int(has_label.sum()):,} without a label"
            print(f"{left_out:,} of {total:,} training rows teach {self.name} nothing: {counts}", flush=True)

    def _write_task(self, folder: Path, **facts: Any) -> None:
        task = {"version": 1, "num_labels": self._num_labels, "settings": self.settings(), **facts}
        (folder / "task.json").write_text(json.dumps(task, indent=1), encoding="utf-8")


class PythonProgram(OutsideMethod):
    """A method whose program is a Python file that runs in a separate environment."""

    plain_targets = False
    program: ClassVar[Path]
    environment: ClassVar[programs.Environment]

    _process: programs.ResidentProgram | None = None

    @classmethod
    def search_space(cls, config: Method.Config) -> dict[str, Any]:  # noqa: ARG003
        """The terms of texts that the program reads: which are best depends on the data."""
        terms: dict[str, Any] = {"characters": [None, [3, 5]], "ngrams": [1, 2]}
        return {name: values for name, values in terms.items() if name in cls.Config.model_fields}

    @contextmanager
    def resident(self) -> Iterator[None]:
        """Within the block one process of the program answers all calls of `predict`."""
        python, *_ = self.command()
        with programs.ResidentProgram([python, PROGRAM / "xmcbench_resident.py", self.program], ENVIRONMENT) as process:
            self._process = process
            try:
                yield
            finally:
                self._process = None

    def _ask(self, folder: Path) -> None:
        if self._process is None:
            super()._ask(folder)
        elif problem := json.loads(self._process.ask(str(folder))):
            raise XMCBenchError(f"{self.name}: {problem}")

    def skip(self, card: data.DatasetCard) -> str | None:  # noqa: ARG002
        if self.environment.python() is None:
            return f"no environment: `xmcbench environment make {self.name}` installs {self.environment.name}"
        return None

    def command(self) -> list[str]:
        python = self.environment.python()
        if python is None:
            raise XMCBenchError(f"{self.name}: no environment: `xmcbench environment make {self.name}` makes it")
        return [str(python), str(self.program)]


class External(OutsideMethod):
    """A command line from the settings."""

    name = "external"
    info = MethodInfo(summary="a program in any language: a command line that reads a folder and writes predictions")

    class Config(Method.Config):
        command: tuple[str, ...] = Field(min_length=1, description="words of the command line")
        settings: dict[str, Any] = Field(default={}, description="settings for the program, in task.json")
        program: str = Field(default="", description="SHA-256 of the files that the command names; filled in")

        @model_validator(mode="after")
        def _hash_program(self) -> External.Config:
            digest = _program_hash(self.command)
            if self.program not in ("", digest):
                raise XMCBenchError(f"command {' '.join(self.command)}: its files changed since the trial was planned")
            object.__setattr__(self, "program", digest)
            return self

    learns_from_words = False  # as far as anybody knows
    config: Config

    def command(self) -> list[str]:
        return list(self.config.command)

    def settings(self) -> dict[str, Any]:
        return self.config.settings


class _Reader:
    """Reports the lines that a program appends to progress.jsonl."""

    def __init__(self, path: Path, report: Callable[[Progress], None]) -> None:
        self._path, self._report, self._read = path, report, 0

    def poll(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for line in filter(None, whole.split(b"\n")):
            try:
                content = json.loads(line)
                metrics = {name: float(value) for name, value in content.get("metrics", {}).items()}
                progress = Progress("train", float(content["fraction"]), metrics)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise XMCBenchError(f'{self._path}: found {line[:80]!r}, expected {{"fraction": 0.5}}') from None
            self._report(progress)


def _charge(path: Path, ledger: Ledger) -> int:
    """Charge what the program reports as spent; return the number of parameters of its model.

    What it does not report is not 0: nobody counted it.
    """
    content = path.read_bytes() if path.exists() else b"{}"
    try:
        numbers = {name: float(value) for name, value in json.loads(content).items()}
    except (ValueError, TypeError, AttributeError):
        start = content[:80].decode(errors="replace")
        raise XMCBenchError(
            f'{path.name}: found {start!r}, expected a JSON object of numbers as {{"epochs": 1}}'
        ) from None
    for name, value in numbers.items():
        if name not in (*CHARGED, "num_parameters") or value < 0:
            raise XMCBenchError(f"{path.name}: found {name} = {value:g}, expected amounts of {', '.join(CHARGED)}")
        if name in CHARGED:
            setattr(ledger, name, value if name == "epochs" else int(value))
    totals = set() if numbers.keys() & {*FLOPS} else {"flops"}
    ledger.not_counted = sorted({*CHARGED} - numbers.keys() | totals)
    return int(numbers.get("num_parameters", 0))


def _write_texts(path: Path, texts: data.Texts) -> None:
    """Write one text per line. White space within a text becomes single spaces."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(" ".join(text.split()) + "\n" for text in texts)


def _write_targets(path: Path, targets: scipy.sparse.csr_array) -> None:
    """Write the labels of a training query per line, with spaces between."""
    with path.open("w", encoding="ascii", newline="\n") as file:
        ends = targets.indptr.tolist()
        for start, end in pairwise(ends):
            file.write(" ".join(map(str, targets.indices[start:end].tolist())) + "\n")


def _program_hash(command: tuple[str, ...]) -> str:
    """SHA-256 of the content of the files among the words of a command."""
    digest = sha256()
    for word in command:
        path = Path(word)
        if path.is_file() and path.suffix:  # not an interpreter, which differs between machines
            digest.update(path.read_bytes())
    return digest.hexdigest()


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(External)
