"""A plugin of methods that behave well or badly, and a dataset of 20 labels. Needs no torch."""

# ruff: noqa: ARG002  (methods that ignore what they are given)
from __future__ import annotations

import errno
import gc
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
import scipy.sparse as sp

from xmcbench import Method, MethodInfo, Predictions, Progress, Run, data, hookimpl, teachers
from xmcbench.data import Draft, Source
from xmcbench.trial.provenance import machine
from xmcbench.trial.record import Record

NUM_TRAIN, NUM_TEST, NUM_LABELS = 30, 40, 20


LITTER: list[np.ndarray] = []


class Ok(Method):
    """Ranks labels by how often they were seen; leaves a trace of each time it was fitted."""

    name = "fake-ok"
    info = MethodInfo("popular labels first", needs=("nothing",))

    class Config(Method.Config):
        encoder: str | dict[str, int] = "none"
        strength: float = 1.0
        width: int = 4
        depths: tuple[int, ...] = (1, 2)
        mode: str = "wide"

        def unused(self) -> frozenset[str]:
            return frozenset() if self.mode == "wide" else frozenset({"width"})

    def fit(self, train: data.TrainingData, run: Run) -> None:
        with (run.checkpoint.parent / "fits.txt").open("a") as fits:
            fits.write("fit\n")
        self.popularity = np.asarray(train.targets.sum(axis=0), dtype=np.float32).ravel()
        run.ledger.steps = run.budget.steps or 1
        run.report(Progress("train", 1.0, {"loss": 0.5}))
        if run.held_out:
            run.log.curve.append(run.held_out.score(self.predict(run.held_out.texts, NUM_LABELS)))

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        best = np.lexsort((np.arange(len(self.popularity)), -self.popularity))[:k].astype(np.int32)
        rows = (len(texts), k)
        return Predictions(np.broadcast_to(best, rows).copy(), np.broadcast_to(self.popularity[best], rows).copy())

    def save(self, directory: Path) -> None:
        (directory / "popularity.json").write_text(json.dumps(self.popularity.tolist()))

    def load(self, directory: Path) -> None:
        self.popularity = np.array(json.loads((directory / "popularity.json").read_text()), dtype=np.float32)


class Rare(Ok):
    """Ranks labels the other way round."""

    name = "fake-rare"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        self.popularity = self.popularity.max() - self.popularity


class Slow(Ok):
    """Works in steps that it can resume, with a child process of its own; stops early for a file named `hurry`."""

    name = "fake-slow"

    class Config(Method.Config):
        seconds: float = 300.0

    def fit(self, train: data.TrainingData, run: Run) -> None:
        assert isinstance(self.config, Slow.Config)
        child = subprocess.Popen(["sleep", "60"])
        (run.checkpoint.parent / "processes.json").write_text(json.dumps([os.getpid(), child.pid]))
        steps = run.checkpoint / "steps"
        start = time.monotonic()
        while time.monotonic() - start < self.config.seconds and not (run.cache / "hurry").exists():
            with steps.open("a") as file:
                file.write("step\n")
            run.ledger.steps = len(steps.read_text().split())
            run.report(Progress("train", 0.5, {"step": run.ledger.steps}))
            time.sleep(0.02)
        child.kill()
        super().fit(train, run)
        run.ledger.steps = len(steps.read_text().split())


class Crash(Ok):
    name = "fake-crash"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        print("about to divide")
        raise ValueError("no way on")


class Oom(Ok):
    name = "fake-oom"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        raise MemoryError("12 TB asked for")


class Killed(Ok):
    """What the system's out-of-memory killer does."""

    name = "fake-killed"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Litterer(Ok):
    """Leaves behind what a process can leave behind: for itself harmless, for later trials of the process not."""

    name = "fake-litterer"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        LITTER.append(np.ones(10**8, np.uint8))
        os.environ["LITTER"] = "here"
        os.chdir("/")
        Ok.predict = Nan.predict  # type: ignore[method-assign]

    predict = Ok.predict


class Tidy(Ok):
    """Writes down what it finds in its process."""

    name = "fake-tidy"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        draws = [random.random(), float(np.random.random())]  # noqa: NPY002
        found = {"litter": len(LITTER), "variable": os.environ.get("LITTER"), "folder": str(Path.cwd()), "draws": draws}
        found |= {"threads": threading.active_count(), "server": psutil.Process().parents()[1].pid, "pid": os.getpid()}
        made = {"checks": Record.__pydantic_complete__, "facts": machine.cache_info().currsize}
        found["made"] = {**made, "frozen objects": gc.get_freeze_count()}
        (run.checkpoint.parent / "found.json").write_text(json.dumps(found))


class Importer(Ok):
    """Imports a framework, which its process then holds in memory."""

    name = "fake-importer"
    late_imports = ("torch",)


class Meets(Ok):
    """Ends when it meets another trial of the run, which needs both to run at once."""

    name = "fake-meets"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        own = run.checkpoint.parent / "here"
        own.touch()
        end = time.monotonic() + 300
        with run.ledger.stage("prepare"):  # outside of the stages, waiting would be work that is not charged
            while len(list(own.parent.parent.glob("*/here"))) < 2:
                if time.monotonic() > end:
                    raise TimeoutError("nobody came")
                time.sleep(0.02)
        (own.parent / "environment.json").write_text(json.dumps(dict(os.environ)))


class Sees(Ok):
    """Leaves its environment."""

    name = "fake-sees"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        (run.checkpoint.parent / "environment.json").write_text(json.dumps(dict(os.environ)))


class SeesNoGpu(Sees):
    name = "fake-sees-none"
    uses_gpu = False


class GuardKiller(Ok):
    name = "fake-guard-killer"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


class Partners(Ok):
    """Several workers that need each other; the last one leaves the others waiting."""

    name = "fake-partners"
    many_workers = True
    late_imports = ("xmcbench.engine.workers",)  # the import of torch is no uncharged work

    class Config(Method.Config):
        last: str = "stays"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        from xmcbench.engine.workers import current_workers

        workers = current_workers()
        with (run.checkpoint.parent / f"worker-{workers.rank}.json").open("w") as file:
            json.dump([workers.size, os.getpid()], file)
        assert isinstance(self.config, Partners.Config)
        with run.ledger.stage("prepare"):
            workers.barrier()  # all of them have written it
        if workers.rank == workers.size - 1 and self.config.last == "fails":
            raise ValueError("worker out of work")
        if workers.rank == workers.size - 1 and self.config.last == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        with run.ledger.stage("prepare"):
            workers.barrier()
        super().fit(train, run)


class FullDisk(Ok):
    name = "fake-full-disk"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.checkpoint / "state"))


class Nan(Ok):
    name = "fake-nan"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        found = super().predict(texts, k)
        return Predictions(found.indices, found.scores * np.float32("nan"))


class Overspender(Ok):
    name = "fake-overspender"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        run.ledger.steps = 10 * (run.budget.steps or 1)
        run.ledger.largest_step = {"steps": 1}


class Cheater(Ok):
    """Takes any matrix of the test targets' shape that it finds in the process for the truth."""

    name = "fake-cheater"

    def _loot(self) -> list[sp.csr_array]:
        gc.collect()
        matrices = [thing for thing in gc.get_objects() if type(thing) is sp.csr_array]
        return [m for m in matrices if m.shape == (NUM_TEST, NUM_LABELS) and m.nnz == NUM_TEST]

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        if self._loot():
            raise PermissionError("found test targets while fitting")

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        if self._loot():
            raise PermissionError("found test targets while predicting")
        return super().predict(texts, k)


class Constant(Ok):
    """Looks at no annotation: labels in the order of their numbers."""

    name = "fake-constant"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        self.popularity = -np.arange(train.num_labels, dtype=np.float32)


class Blind(Constant):
    """Looks for training annotations anywhere but in its training data."""

    name = "fake-blind"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        super().fit(train, run)
        gc.collect()
        matrices = [thing for thing in gc.get_objects() if type(thing) is sp.csr_array]
        if [m for m in matrices if m.shape == (NUM_TRAIN, NUM_LABELS) and m.nnz]:
            raise PermissionError("found training annotations")


class Asker(Blind):
    """Asks a teacher about every training document and label, then looks for what the teacher knows."""

    name = "fake-asker"

    class Config(Method.Config):
        teacher: teachers.TeacherConfig
        rounds: int = 1

    def fit(self, train: data.TrainingData, run: Run) -> None:
        assert isinstance(self.config, Asker.Config)
        with run.judge(self.config.teacher) as judge:
            documents, labels = np.divmod(np.arange(len(train.texts) * train.num_labels), train.num_labels)
            for _ in range(self.config.rounds):
                found = judge(documents, labels)
            super().fit(train, run)
        self.popularity = np.bincount(labels[found.yes], minlength=train.num_labels).astype(np.float32)
        run.ledger.steps = run.budget.steps or 0


class OrderDependent(Ok):
    """Knows that the file is sorted: the n-th test query has label n mod L."""

    name = "fake-order"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        first = np.arange(len(texts), dtype=np.int32)[:, None]
        indices = (first + np.arange(k, dtype=np.int32)) % NUM_LABELS
        scores = np.broadcast_to(-np.arange(k, dtype=np.float32), indices.shape).copy()
        return Predictions(indices, scores)


class Picky(Ok):
    name = "fake-picky"

    def skip(self, card: object) -> str | None:
        return "needs a million labels"


class TwentyLabels(Source):
    """Test query n has the label n mod 20; training favours low labels; one test pair is to be ignored."""

    draft: ClassVar[Draft] = Draft(name="fake-20", source="made", licence="none")

    def missing(self, data_dir: Path) -> str | None:
        return None

    def fingerprint(self, data_dir: Path) -> str:
        return "1"

    def read(self, data_dir: Path) -> data.Dataset:
        train = _targets(np.minimum(np.arange(NUM_TRAIN) % 23, np.arange(NUM_TRAIN) % NUM_LABELS))
        test = _targets(np.arange(NUM_TEST) % NUM_LABELS)
        ignore = sp.csr_array((np.ones(1, np.float32), ([3], [0])), shape=test.shape)
        card = self.draft.card(NUM_TRAIN, NUM_TEST, NUM_LABELS, "memory")
        return data.Dataset(
            card,
            data.Split([f"train {i}" for i in range(NUM_TRAIN)], train),
            data.Split([f"test {i}" for i in range(NUM_TEST)], test),
            [f"label {i}" for i in range(NUM_LABELS)],
            sp.csr_array(train.shape, dtype=np.float32),
            ignore,
        )


class Elsewhere(TwentyLabels):
    draft: ClassVar[Draft] = Draft(name="fake-absent", source="made", licence="none")

    def missing(self, data_dir: Path) -> str | None:
        return f"fake-absent is not in {data_dir}: get it nowhere"


def _targets(labels: np.ndarray) -> sp.csr_array:
    ones = np.ones(len(labels), np.float32)
    return sp.csr_array((ones, (np.arange(len(labels)), labels)), shape=(len(labels), NUM_LABELS))


METHODS = (
    Ok, Rare, Slow, Crash, Oom, Killed, Partners, FullDisk, Nan, Overspender, Cheater, Constant, Blind,
    Asker, OrderDependent, Picky, Litterer, Tidy, GuardKiller, Meets, Importer, Sees, SeesNoGpu
)  # fmt: skip


@hookimpl
def register_methods(register) -> None:
    for method in METHODS:
        register(method)


@hookimpl
def register_datasets(register) -> None:
    register(TwentyLabels())
    register(Elsewhere())
