"""Methods with honest accidents in their accounts and their models: work that is not charged, state from elsewhere."""

# ruff: noqa: ARG002  (methods that ignore what they are given)
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from xmcbench_fakes import Ok

from xmcbench import DualEncoder, EmbeddingMethod, MethodInfo, Predictions, Run, data, hookimpl, losses


class Cheat(Ok):
    """Well behaved, but for what a subclass adds to `fit`."""

    def fit(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            self.popularity = np.asarray(train.targets.sum(axis=0), dtype=np.float32).ravel()
        run.ledger.steps = run.budget.steps or 1
        self.accident(train, run)

    def accident(self, train: data.TrainingData, run: Run) -> None:
        """What goes wrong."""


def update() -> None:
    """One step of an optimiser of torch."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    torch.optim.SGD([weight], lr=0.1).step()


class NanLedger(Cheat):
    name = "nan-ledger"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.encoder_tokens = float("nan")  # type: ignore[assignment]


class TextLedger(Cheat):
    name = "text-ledger"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.steps = "5"  # type: ignore[assignment]


class NegativeSeconds(Cheat):
    name = "negative-seconds"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.stage_seconds["train"] = -3453.0


class ClearedSeconds(Cheat):
    name = "cleared-seconds"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            time.sleep(5)
        run.ledger.stage_seconds.clear()


class OwnStage(Cheat):
    name = "own-stage"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("tokenise"):
            pass


class BadCurve(Cheat):
    name = "bad-curve"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.log.curve.append({"fraction": float("inf")})


class LargestStep(Cheat):
    name = "largest-step"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.steps = 40
        run.ledger.largest_step = {"steps": 1e18}


class OwnPass(Cheat):
    """An encoder pass of its own that nothing charges."""

    name = "own-pass"
    late_imports = DualEncoder.late_imports
    stage: ClassVar[str] = "train"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        import torch

        from xmcbench import encoders

        encoder = encoders.build_encoder(encoders.EncoderConfig(name="nano"), train.texts, 0, run.cache)
        with run.ledger.stage(self.stage), torch.no_grad():
            for _ in range(4):
                encoder(torch.ones((len(train.texts), 8), dtype=torch.long))


class AsksTransformer(OwnPass):
    """A pass through the transformer within the encoder, whose tokens nothing charges."""

    name = "asks-transformer"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        import torch

        from xmcbench import encoders

        encoder = encoders.build_encoder(encoders.EncoderConfig(name="nano"), train.texts, 0, run.cache)
        with run.ledger.stage(self.stage), torch.no_grad():
            encoder.transformer(input_ids=torch.ones((len(train.texts), 8), dtype=torch.long))


class ModuleInThread(EmbeddingMethod):
    """A module that computes in `loss`, in a thread, where the harness does not look."""

    name = "module-in-thread"
    info = MethodInfo(summary="a module in a thread")
    in_thread: ClassVar[bool] = True

    def build_modules(self, train: data.TrainingData) -> Any:
        import torch

        width = self.encoder.dimension
        wide = torch.nn.Linear(width, 4 * width)
        return torch.nn.Sequential(wide, torch.nn.Tanh(), torch.nn.Linear(4 * width, width))

    def load_modules(self, tensors: Any) -> Any:
        raise NotImplementedError

    def loss(self, queries_BD: Any, labels_SD: Any, batch: Any) -> Any:
        moved_BD: list[Any] = []
        if self.in_thread:
            thread = threading.Thread(target=lambda: moved_BD.append(self.modules(queries_BD)))
            thread.start()
            thread.join()
        else:
            moved_BD.append(self.modules(queries_BD))
        weights = batch.positives.averaged()
        return losses.softmax(moved_BD[0], labels_SD, batch.positives, weights, temperature=1.0)


class ModuleInLoss(ModuleInThread):
    """The same in the thread of `fit`, which the harness counts."""

    name = "module-in-loss"
    in_thread = False


class TrainsSolver(Cheat):
    """A linear model of scikit-learn, whose iterations nothing charges."""

    name = "trains-solver"
    late_imports = ("sklearn.svm",)

    def accident(self, train: data.TrainingData, run: Run) -> None:
        from sklearn.svm import LinearSVC

        rows = np.random.default_rng(0).standard_normal((len(train.texts), 8))
        with run.ledger.stage("train"):
            LinearSVC().fit(rows, rows[:, 0] > 0)


class TrainsClusters(Cheat):
    """A model of scikit-learn that does not say what it computed."""

    name = "trains-clusters"
    late_imports = ("sklearn.cluster",)

    def accident(self, train: data.TrainingData, run: Run) -> None:
        from sklearn.cluster import KMeans

        with run.ledger.stage("train"):
            KMeans(2, random_state=0).fit(np.eye(len(train.texts)))


class CallsSolver(Cheat):
    """A solver of scipy, which nobody counts."""

    name = "calls-solver"
    late_imports = ("scipy.sparse.linalg",)

    def accident(self, train: data.TrainingData, run: Run) -> None:
        from scipy.sparse.linalg import svds

        with run.ledger.stage("train"):
            svds(train.targets, 2, rng=0)


class Broadcasts(ModuleInLoss):
    """Scores by multiplication with broadcasting, in place of a product."""

    name = "module-that-broadcasts"

    def loss(self, queries_BD: Any, labels_SD: Any, batch: Any) -> Any:
        scores_BS = (queries_BD[:, None] * labels_SD[None]).sum(2)
        return losses.softmax(scores_BS, None, batch.positives, batch.positives.averaged(), temperature=1.0)


def multiply(rows: int) -> None:
    """A product of torch, with a gradient."""
    import torch

    left = torch.ones(rows, rows, requires_grad=True)
    (left @ left).sum().backward()


class MultipliesOnce(Cheat):
    """Keeps what a product gave in the cache, so that the next trial is charged nothing."""

    name = "multiplies-once"
    late_imports = DualEncoder.late_imports

    def accident(self, train: data.TrainingData, run: Run) -> None:
        kept = run.cache / "product"
        if not kept.exists():
            with run.ledger.stage("train"):
                multiply(len(train.texts))
            kept.touch()


class MultipliesInIndex(Cheat):
    """Learns by a product where only labels are embedded."""

    name = "multiplies-in-index"
    late_imports = DualEncoder.late_imports
    stage: ClassVar[str] = "index"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage(self.stage):
            multiply(len(train.texts))


class MultipliesUncharged(MultipliesInIndex):
    name = "multiplies-uncharged"
    stage = "uncharged"


class GradientInPredict(Cheat):
    """Adapts to the texts of `predict` without an optimiser of torch."""

    name = "gradient-in-predict"
    late_imports = DualEncoder.late_imports

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        multiply(len(texts))
        return super().predict(texts, k)


class ChildProcess(Cheat):
    """Computes in a child process."""

    name = "child-process"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)


class PassInIndex(OwnPass):
    name = "pass-in-index"
    stage = "index"


class PassUncharged(OwnPass):
    name = "pass-uncharged"
    stage = "uncharged"


class TrainsInIndex(Cheat):
    name = "trains-in-index"
    late_imports = DualEncoder.late_imports

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("index"):
            update()


class TrainsUncharged(Cheat):
    name = "trains-uncharged"
    late_imports = DualEncoder.late_imports

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.uncharged():
            update()


class TrainsInPredict(Cheat):
    name = "trains-in-predict"
    late_imports = DualEncoder.late_imports

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        update()
        return super().predict(texts, k)


class TrainsInSave(Cheat):
    name = "trains-in-save"
    late_imports = DualEncoder.late_imports

    def save(self, directory: Path) -> None:
        update()
        super().save(directory)


class TrainsInLoad(Cheat):
    name = "trains-in-load"
    late_imports = DualEncoder.late_imports

    def load(self, directory: Path) -> None:
        super().load(directory)
        update()


class LearnsIntoModel(Cheat):
    """Keeps what it learns from the texts of the first `predict` in its saved model."""

    name = "learns-into-model"
    model: Path | None = None

    def accident(self, train: data.TrainingData, run: Run) -> None:
        self.model = run.checkpoint.parent / "model"

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        if self.model is not None:
            self.popularity = self.popularity + len(texts) * np.arange(len(self.popularity))
            super().save(self.model)
            self.model = None
        return super().predict(texts, k)


class SlowIndex(Cheat):
    """Computes beside its budget for longer than for one and a half of it, and three seconds."""

    name = "slow-index"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("index"):
            end = time.process_time() + 1.5 * (run.budget.device_seconds or 0) + 3
            while time.process_time() < end:
                pass


class FitsOnTest(Cheat):
    """Learns from the texts of the first `predict`, and keeps that."""

    name = "fits-on-test"
    seen: int = 0

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        if not self.seen:
            self.seen = 1 + len(texts)
            self.popularity = self.popularity + np.arange(len(self.popularity)) * (self.seen % 7 + 1)
        return super().predict(texts, k)

    def save(self, directory: Path) -> None:
        super().save(directory)
        (directory / "seen.json").write_text(json.dumps(self.seen))

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.seen = json.loads((directory / "seen.json").read_text())


class StoresPath(Cheat):
    """Its model names a file of the checkpoint."""

    name = "stores-path"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        self.place = run.checkpoint.parent / "kept.json"
        self.place.write_text(json.dumps(self.popularity.tolist()))

    def save(self, directory: Path) -> None:
        (directory / "place.txt").write_text(str(self.place))

    def load(self, directory: Path) -> None:
        self.popularity = np.array(json.loads(Path((directory / "place.txt").read_text()).read_text()), np.float32)


class StoresModelPath(StoresPath):
    """Its model names itself by its whole path."""

    name = "stores-model-path"

    def save(self, directory: Path) -> None:
        self.place = directory.parent / "model" / "kept.json"
        (directory / "kept.json").write_text(json.dumps(self.popularity.tolist()))
        super().save(directory)


class HomeCache(Cheat):
    """Keeps what the first seed found in the home folder, where all seeds find it."""

    name = "home-cache"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        place = Path.home() / ".cache" / "mine" / "order.json"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(run.rng("order").permutation(train.num_labels).tolist()))
        self.popularity = np.array(json.loads(place.read_text()), np.float32)


class SharedCache(Cheat):
    """The same in the cache of all trials, which no trial can tell from a tokenizer."""

    name = "shared-cache"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        place = run.cache / "tokens" / "order.json"
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.write_text(json.dumps(run.rng("order").permutation(train.num_labels).tolist()))
        self.popularity = np.array(json.loads(place.read_text()), np.float32)


class ReadsEnvironment(Cheat):
    name = "reads-environment"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        self.popularity = self.popularity * float(os.environ.get("MY_POWER", "1"))


class Regenerates(Cheat):
    """Makes the data again, with the test targets."""

    name = "regenerates"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        from xmcbench.data import find_source

        source = find_source(train.card.name, run.cache)
        self.popularity = np.asarray(source.read(run.cache).test.targets.sum(axis=0), np.float32).ravel()


class QuietlyRegenerates(Regenerates):
    name = "quietly-regenerates"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        try:
            super().accident(train, run)
        except Exception:
            self.popularity = self.popularity + 1


class ReadsAnnotations(Cheat):
    """Reads the training annotations that the zero-shot track does not give."""

    name = "reads-annotations"

    def fit(self, train: data.TrainingData, run: Run) -> None:
        (place,) = run.cache.glob(f"datasets/{train.card.name}-*/train_targets.indices.npy")
        labels = np.load(place)
        self.popularity = np.bincount(labels, minlength=train.num_labels).astype(np.float32)
        run.ledger.steps = run.budget.steps or 1


class ThreadTrains(Cheat):
    name = "thread-trains"
    late_imports = DualEncoder.late_imports

    def accident(self, train: data.TrainingData, run: Run) -> None:
        thread = threading.Thread(target=update)
        thread.start()
        thread.join()


class NegativeSteps(Cheat):
    name = "negative-steps"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.steps = -3


class NegativeParameters(Cheat):
    name = "negative-parameters"
    num_parameters = -5  # type: ignore[assignment]


class LowersTokens(OwnPass):
    """Charges its pass, then takes the charge back."""

    name = "lowers-tokens"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.ledger.encoder_tokens += 960
        super().accident(train, run)
        run.ledger.encoder_tokens -= 900


class PatchedClock(Cheat):
    """Stops the clocks of Python while it works."""

    name = "patched-clock"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        clock, end = time.process_time, time.process_time() + 0.3
        time.perf_counter = time.process_time = lambda: 0.0
        with run.ledger.stage("train"):
            time.sleep(0.5)
            while clock() < end:
                pass


class ChildWorks(Cheat):
    """Has a child process do the work: tokens and steps are 0."""

    name = "child-works"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.stage("train"):
            subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)


class OwnLoop(Cheat):
    """Trains by arithmetic of its own in `uncharged()`, with no optimiser or encoder that the harness knows."""

    name = "own-loop"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        with run.ledger.uncharged():
            for _ in range(20):
                self.popularity = self.popularity + 0.1 * np.sin(self.popularity)


class LateLedger(Cheat):
    """Lowers its costs, and adds to its curve, once `fit` has been looked at."""

    name = "late-ledger"
    fitted: Run | None = None

    def accident(self, train: data.TrainingData, run: Run) -> None:
        self.fitted = run

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        if self.fitted is not None:
            self.fitted.ledger.steps = 1
            self.fitted.log.curve.append({"fraction": float("nan")})
        return super().predict(texts, k)


class ChangesBudget(Cheat):
    name = "changes-budget"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        run.budget.__dict__["steps"] = 10**6
        run.ledger.steps = 1000


class ForgesRecord(Cheat):
    """Writes a record of its own and exits."""

    name = "forges-record"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        from xmcbench.trial.record import Record, Status
        from xmcbench.trial.store import Store
        from xmcbench.trial.trial import Trial

        folder = run.checkpoint.parent
        trial = Trial.model_validate(json.loads((folder / "trial.json").read_text())["trial"])
        forged = Record(key=trial.key, suite="test", trial=trial, status=Status.OK, metrics={"P@1": 1.0})
        Store(folder.parent.parent).write_record(forged)
        os._exit(0)


class SavesLink(Cheat):
    name = "saves-link"

    def save(self, directory: Path) -> None:
        super().save(directory.parent)
        (directory / "popularity.json").symlink_to(directory.parent / "popularity.json")


class PatchesJson(Cheat):
    name = "patches-json"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        json.dumps = lambda *_, **__: "{}"  # type: ignore[assignment]


class ErrorWithoutText(Cheat):
    name = "error-without-text"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        class Wordless(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise Wordless


class EndlessError(Cheat):
    name = "endless-error"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        raise type("\n" + "E" * 5000, (Exception,), {})("x" * 10**6 + "\ud800")


class HugeParameters(Cheat):
    name = "huge-parameters"
    num_parameters = 10**40  # type: ignore[assignment]


class ClimbsHeldOut(Cheat):
    """Takes what is best on the held-out queries, which only choose a checkpoint."""

    name = "climbs-held-out"

    def accident(self, train: data.TrainingData, run: Run) -> None:
        for _ in range(60 if run.held_out else 0):
            assert run.held_out is not None
            run.held_out.score(self.predict(run.held_out.texts, 20))


METHODS = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, (Cheat, ModuleInThread)) and kind is not Cheat
]


@hookimpl
def register_methods(register: Any) -> None:
    for method in METHODS:
        register(method)
