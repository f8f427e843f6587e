"""The rules of methods, and of those that train on several workers or in micro-batches.

Legend: N queries, k predicted labels.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from time import process_time
from traceback import walk_tb
from typing import Any

import numpy as np
from pydantic import BaseModel

from xmcbench.errors import XMCBenchError, place_of
from xmcbench.evaluation import InvalidPredictions
from xmcbench.runs.file_guard import Sandbox
from xmcbench.runs.job import variables
from xmcbench.runs.predicting import Sample, ask, differs
from xmcbench.trial.budget import Budget
from xmcbench.trial.meter import metering, uncharged_work
from xmcbench.trial.method import Method
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.provenance import code_files
from xmcbench.trial.record import why_not_recordable
from xmcbench.trial.run import Progress, TrainingLog
from xmcbench_plugins.conformance.rules import BrokenRuleError, NotApplicableError, Subject, require, rule
from xmcbench_plugins.conformance.smoke import MOST_LINES, Smoke, smoking
from xmcbench_plugins.conformance.tiny_trial import BUDGET, NUM_LABELS, ODD, ONE_LABEL, ORDINARY, Fitted, K, TinyTrial

LONGER = Budget(steps=40)  # long enough to learn the tiny data
UNCHARGED_SECONDS = 1.0  # of processors, which fit may take on tiny data and charge to no stage
LARGEST_MODEL = 500_000_000  # bytes of a model of 16 labels
MICRO_BATCH_TOKENS = 96  # a few texts of the tiny datasets
ODD_REMEDY = "handle empty texts and labels or queries without pairs, or return a reason from skip(card)"
of_dual_encoders = partial(rule, section="A method that is a dual encoder")


class Interrupted(Exception):
    """Ends a training, as a kill would."""


@dataclass
class MethodSubject(Subject):
    """A registered method with settings, and a folder to train it in."""

    section = "A method"
    thing: type[Method]

    def __post_init__(self) -> None:
        self.trial = TinyTrial(self.thing.name, self.settings, self.folder, ORDINARY)
        method = self.trial.build()  # wrong settings are an error before any check
        if reason := method.skip(self.trial.dataset.card):
            raise XMCBenchError(f"method {self.thing.name!r} cannot be checked here: {reason}")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        return code_files("method", self.thing.name)

    @cached_property
    def smoke(self) -> tuple[Fitted, Smoke]:
        """The method fitted for the first time, and asked once, and what was seen of it.

        Raises BrokenRuleError where it raises, naming file and line.
        """
        modules = [module for module in list(sys.modules.values()) if _file(module) in self.files]
        with smoking("fit", self.files, modules) as seen, self._called("fit"):
            fitted = self.trial.fit()
        with smoking("predict", self.files, modules) as asked, self._called("predict"):
            ask(fitted.method, list(fitted.dataset.test.texts), K)
        seen.printed.update(asked.printed)
        seen.changed += [name for name in asked.changed if name not in seen.changed]
        return fitted, seen

    @contextmanager
    def _called(self, call: str) -> Iterator[None]:
        """Raise BrokenRuleError for what `call` raises, with file and line."""
        try:
            yield
        except BrokenRuleError:
            raise
        except InvalidPredictions as problem:
            raise BrokenRuleError(f"{problem} ({self.place(call)})") from problem
        except Exception as problem:
            text = " ".join(f"{type(problem).__name__}: {problem}".split())
            within = any(Path(frame.f_code.co_filename) in self.files for frame, _ in walk_tb(problem.__traceback__))
            place = place_of(problem, self.files) if within else self.place(call)  # of a call that never began
            raise BrokenRuleError(f"{call} raises {text} ({place})") from problem

    def place(self, call: str) -> str:
        """File and line where the method defines `call`."""
        function = inspect.unwrap(getattr(self.thing, call))
        return f"{Path(inspect.getfile(function)).name}:{inspect.getsourcelines(function)[1]}"

    def setting(self, place: str) -> str:
        """File and line of the setting at a place such as `loss.margins[0]`."""
        return _line_of_setting(self.thing.Config, re.split(r"[.\[]", place)[0])

    @property
    def fitted(self) -> Fitted:
        return self.smoke[0]

    @cached_property
    def again(self) -> tuple[Fitted, float]:
        """The method fitted again with the same seed, and the seconds of processors that it charged to no stage."""
        begun = process_time()
        fitted = replace(self.trial, name="again").fit()
        return fitted, process_time() - begun - sum(fitted.log.ledger.stage_cpu_seconds.values())

    def fit_on(self, dataset: str) -> Fitted:
        """The method fitted on another tiny dataset."""
        trial = replace(self.trial, dataset_name=dataset)
        if reason := trial.build().skip(trial.dataset.card):
            raise NotApplicableError(reason)
        return trial.fit()

    @cached_property
    def elsewhere(self) -> Predictions:
        """The predictions of the trial run in another process, with another hash seed, home and cache."""
        folder = self.folder / "second"
        trial = replace(self.trial, name="second process", folder=folder)
        return trial.run(PYTHONHASHSEED="12345", HOME=str(folder / "home"))

    @rule(
        "`fit(train, run)` and `predict(texts, k)` end, and raise nothing, on tiny data.",
        "mend this line first: nothing else can be tried before",
        first=True,
    )
    def it_fits_and_predicts(self) -> None:
        _ = self.smoke

    @rule("`Config` is a pydantic model: frozen, unknown keys refused.", "use tuples and frozen models as fields")
    def settings_are_immutable(self) -> None:
        config = self.trial.build().config
        require(config.model_config.get("frozen"), f"{type(config).__name__} is not frozen")
        require(config.model_config.get("extra") == "forbid", f"{type(config).__name__} accepts unknown keys")
        for place, kind in _mutable_parts(config, ""):
            raise BrokenRuleError(f"the setting {place} is a {kind}, which can be changed ({self.setting(place)})")

    @rule(
        "`Config` is a pydantic model: frozen, unknown keys refused.",
        "give every setting a type that pydantic writes as JSON and reads again",
    )
    def settings_survive_json(self) -> None:
        config = self.trial.build().config
        again = type(config).model_validate_json(config.model_dump_json(), strict=True)
        require(again == config, f"{config!r} becomes {again!r}")

    @rule(
        "`predict(texts, k)` returns `[N, k]` label ids and scores, best first, equal scores by ascending label, no "
        "label twice; -1 and -inf pad a row that has fewer.",
        "rank the scores with xmcbench.evaluation.rank",
        first=True,
    )
    def predictions_are_ranked(self) -> None:
        for k in (K, 1, NUM_LABELS):
            with self._called("predict"):
                found = self.fitted.predict(k)
            for name, array, kind in (("indices", found.indices, np.int32), ("scores", found.scores, np.float32)):
                wanted = np.dtype(kind).name
                wrong = f"{name} are {array.dtype}, expected {wanted}: .astype(np.{wanted}) ({self.place('predict')})"
                require(array.dtype == kind, f"predict({k=}) returned {wrong}")

    @rule("`fit` leaves `self.config` as it is.", "copy what fit has to change")
    def fit_leaves_the_settings(self) -> None:
        before, after = self.trial.build().config, self.fitted.method.config
        require(before == after, f"{before!r} before, {after!r} after")

    @rule(
        "It keeps to `run.budget`, charging `run.ledger` as it goes.",
        "stop when run.ledger.fraction(run.budget) reaches 1; charge steps and encoder_tokens to run.ledger",
    )
    def the_budget_is_kept(self) -> None:
        ledger = self.fitted.log.ledger
        exceeding = {name: ledger.spent(name) for name in ledger.over(BUDGET)}
        require(not exceeding, f"charged {exceeding}, allowed {BUDGET.limits()} and one step more")
        charged = ledger.steps or ledger.encoder_tokens or ledger.flops or ledger.stage_seconds
        parameters = self.fitted.method.num_parameters
        require(charged or not parameters, f"{parameters} parameters were trained, and nothing was charged")

    @rule(
        "What it charges is what the harness counts: tokens through the encoder, steps of optimisers, seconds.",
        "charge encoder_tokens, and open `with run.ledger.stage(...)` around work; index and uncharged() are not for "
        "training; put flops into run.ledger.not_counted where nobody counts what numpy multiplies",
    )
    def all_work_is_charged(self) -> None:
        again, uncharged = self.again
        ledger = again.log.ledger
        charged = sum(ledger.stage_cpu_seconds.values())
        found = f"fit computed {uncharged:.1f} seconds in no stage, and charged {charged:.1f} ({self.place('fit')})"
        require(uncharged <= max(UNCHARGED_SECONDS, charged), found)
        nobody = not ledger.flops and "flops" not in ledger.not_counted and charged > UNCHARGED_SECONDS
        found = f"fit computed {charged:.1f} seconds, and no operation of them is counted ({self.place('fit')})"
        require(not nobody, found)
        log = TrainingLog()
        with metering() as meter, log.ledger.stage("prepare"):
            fitted = replace(self.trial, name="metered").fit(log=log)
        problem = why_not_recordable(log.ledger.as_dict(), log.curve)
        problem = problem or uncharged_work(meter, log.ledger, BUDGET, NUM_LABELS, len(log.curve))
        require(not problem, problem)
        with metering() as meter:
            fitted.method.predict(list(fitted.dataset.test.texts), K)
        require(not meter.updates, "predict trained")

    @rule(
        "An outside counter confirms its charges: operations and tokens within 5 %, or what nobody counts is named.",
        "multiply in the thread of fit, read texts through self.encoder or charge encoder_tokens, charge solver_flops "
        "or put flops into run.ledger.not_counted",
    )
    def an_outside_counter_confirms_the_charges(self) -> None:
        from xmcbench_plugins.conformance.outside_count import counting_from_outside, miscounted

        log = TrainingLog()
        with counting_from_outside() as count, log.ledger.stage("prepare"):
            fitted = replace(self.trial, name="counted").fit(log=log)
        encoder = getattr(fitted.method, "encoder", None)
        frozen = encoder is not None and not all(weights.requires_grad for weights in encoder.parameters())
        problem = miscounted(count, log.ledger, frozen=frozen)
        require(not problem, problem)

    @rule("A method learns.", "give it more steps, another learning rate, or the labels' texts", warns=True)
    def it_beats_the_most_frequent_labels(self) -> None:
        fitted = replace(self.trial, name="longer", budget=LONGER).fit()
        train = fitted.dataset.train
        found = ask(fitted.method, list(train.texts), 1).indices[:, 0]
        popular = np.full_like(found, np.argmax(train.targets.sum(axis=0)))
        hits = [float(train.targets[np.arange(len(found)), own].mean()) for own in (found, popular)]
        texts = f"its best label is right for {hits[0]:.0%} of training queries, the most frequent for {hits[1]:.0%}"
        steps = f"after {fitted.log.ledger.steps} steps" if fitted.log.ledger.steps else "and it counted no step"
        require(hits[0] > hits[1], f"{texts}, {steps} ({self.place('fit')})")

    @rule("Progress goes to `run.report`, not to standard output.", "report with run.report(Progress(...)), log rarely")
    def little_is_printed(self) -> None:
        printed = self.smoke[1].printed
        if printed.total() > MOST_LINES:
            ((place, lines),) = printed.most_common(1)
            raise BrokenRuleError(f"fit and predict printed {lines:,} lines on tiny data ({place})")

    @rule(
        'Randomness comes from `run.rng("purpose")` or `run.seed`. Nothing global.',
        "keep what is learnt in self, and what trials may share in run.cache",
        warns=True,
    )
    def no_global_changes(self) -> None:
        changed = self.smoke[1].changed
        require(not changed, f"fit or predict changed {', '.join(changed[:3])}: other trials of the process see it")

    @rule(
        "What a trial's result depends on is in its settings.",
        'make it a field of Config, which is in the trial\'s key; a key of a service is run.secret("NAME")',
    )
    def no_setting_is_read_from_the_environment(self) -> None:
        for path in self.files:
            for node in ast.walk(ast.parse(path.read_bytes())):
                require(not _reads_environment(node), f"{path.name}:{getattr(node, 'lineno', 0)} reads os.environ")

    @rule("`predict` returns the same whenever it is asked.", "draw nothing at random in predict, change no state")
    def predictions_repeat(self) -> None:
        require_same(self.fitted.predict(), self.fitted.predict(), "the first call", "the second")

    @rule(
        "Queries arrive shuffled: an answer must not depend on its neighbours.",
        "compute each row from its own text alone: no statistics over the batch in predict",
    )
    def predictions_do_not_depend_on_other_queries(self) -> None:
        fitted = self.fitted
        texts = list(fitted.dataset.test.texts)
        found = fitted.predict()
        Sample(texts, found).check_order(fitted.method)
        for row in (0, len(texts) - 1):
            alone = Sample([texts[row]], Predictions(found.indices[[row]], found.scores[[row]]))
            alone.check_order(fitted.method)

    @rule(
        'Randomness comes from `run.rng("purpose")` or `run.seed`. Nothing global.',
        'draw from run.rng("purpose") in place of it',
    )
    def no_global_generator_is_used(self) -> None:
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        before = random.getstate(), repr(np.random.get_state(legacy=False))  # noqa: NPY002
        again, _ = self.again
        after = random.getstate(), repr(np.random.get_state(legacy=False))  # noqa: NPY002
        draws = f"fit draws from {{}}{_named(self.files, _is_global_draw)}"
        require(before[0] == after[0], draws.format("the module random"))
        require(before[1] == after[1], draws.format("numpy.random"))
        names = "the first training", f"the second with the same seed{_named(self.files, _has_no_seed)}"
        require_same(self.fitted.predict(), again.predict(), *names)

    @rule(
        "One seed gives one result, also in another process.",
        "iterate over sorted(...) in place of a set, draw from run.rng, and use no time, address or hash()",
        after=("no-global-generator-is-used", "the-model-is-saved-without-pickle"),
    )
    def another_process_trains_the_same(self) -> None:
        require_same(self.fitted.predict(NUM_LABELS), self.elsewhere, "this process", "another process")

    @rule(
        "One seed gives one result, also in another process.",
        "keep in run.cache, and nowhere else, only what does not depend on the seed",
        after=("no-global-generator-is-used",),
    )
    def seeds_share_nothing(self) -> None:
        other = replace(self.trial, name="other seed", seed=1)
        elsewhere = replace(other, folder=self.folder / "elsewhere")
        after = other.fit()
        with variables(HOME=str(elsewhere.folder)):
            alone = elsewhere.fit()
        changed = self.smoke[1].changed
        name = f"the seed alone; fit changed {changed[0]}" if changed else "the seed alone"
        require_same(after.predict(), alone.predict(), "a seed after another", name)
        if changed:  # a process that has not fitted before tells whether it matters
            fresh = replace(elsewhere, name="fresh").run(HOME=str(elsewhere.folder))
            require_same(after.predict(NUM_LABELS), fresh, "a seed after another", name)

    @rule(
        "`save` and `load` use JSON, npz or safetensors, never pickle.", "write arrays with numpy.savez or safetensors"
    )
    def the_model_is_saved_without_pickle(self) -> None:
        folder = self.folder / "model"
        folder.mkdir()
        with self._called("save"):
            self.fitted.method.save(folder)
        paths = [*filter(Path.is_file, sorted(folder.rglob("*")))]
        if (total := sum(path.stat().st_size for path in paths)) > LARGEST_MODEL:
            largest = max(paths, key=lambda path: path.stat().st_size)
            size = f"{largest.name} has {largest.stat().st_size / 1e9:.1f} of {total / 1e9:.1f} GB"
            raise BrokenRuleError(f"{size}, for {NUM_LABELS} labels and few texts ({self.place('save')})")
        for path in paths:
            with path.open("rb") as file:
                start = file.read(4096)
            pickled = (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05") or b"data.pkl" in start
            require(not pickled, f"{path.name} holds a pickle ({self.place('save')})")

    @rule(
        "`load` restores what `save` wrote.",
        "save everything that predict reads, and read it all in load",
        after=("no-global-generator-is-used", "the-model-is-saved-without-pickle"),
    )
    def the_loaded_model_predicts_the_same(self) -> None:
        try:
            _ = self.elsewhere  # its trial asks the saved model again, moved to another folder, in a process of its own
        except NotApplicableError as problem:
            require("saved model" not in str(problem), str(problem))
            raise

    @rule(
        "What it writes to `run.checkpoint` is there again when a killed trial is resumed.",
        "write whole files with xmcbench.files.atomic_write, restore all state from them, or start again from nothing",
        after=("no-global-generator-is-used",),
    )
    def a_resumed_training_equals_an_unbroken_one(self) -> None:
        trial = replace(self.trial, name="resumed")
        reports = count(1)

        def interrupt(_: Progress) -> None:
            if next(reports) == 2:
                raise Interrupted

        try:
            trial.fit(interrupt, checkpoint_seconds=0.0)
        except Interrupted:
            resumed = trial.fit(checkpoint_seconds=0.0)
            require_same(self.fitted.predict(), resumed.predict(), "the unbroken training", "the resumed one")
            one, other = self.fitted.log.ledger.steps, resumed.log.ledger.steps
            require(one == other, f"{one} steps charged by the unbroken training, {other} by the other")
            return
        raise NotApplicableError("fit reports progress at most once")

    @rule(
        "`fit(train, run)` sees `TrainingData`. The method does not read the dataset's files.",
        "take texts, targets and label texts from `train`",
    )
    def no_test_file_is_read(self) -> None:
        trial = replace(self.trial, name="guarded")
        with Sandbox(trial.job(), own_thread=False).closed("fit or predict"):
            trial.fit().method.predict(["a query"], 1)

    @rule(
        "Queries and labels may lack pairs; texts may be empty, equal, long, or of any script.",
        ODD_REMEDY,
        after=("seeds-share-nothing",),
    )
    def odd_texts_are_handled(self) -> None:
        fitted = self.fit_on(ODD)
        with self._called("predict"):
            fitted.predict()

    @rule("A dataset may have a single label.", ODD_REMEDY, after=("seeds-share-nothing", "odd-texts-are-handled"))
    def a_single_label_is_handled(self) -> None:
        fitted = self.fit_on(ONE_LABEL)
        with self._called("predict"):
            fitted.predict()

    def _without_dropout(self, name: str, **settings: Any) -> TinyTrial:
        """The trial with further settings and an encoder without dropout, whose draws depend on micro-batches.

        Raises NotApplicableError for a method without an encoder.
        """
        if "micro_batch_tokens" not in self.thing.Config.model_fields:
            raise NotApplicableError("not a DualEncoder")
        encoder: Any = self.trial.settings.get("encoder", "tiny")
        named: Mapping[str, Any] = encoder if isinstance(encoder, Mapping) else {"name": encoder}
        still = {**named, "dropout": 0.0, "hidden_dropout": 0.0}
        return replace(self.trial, name=name, settings={**self.trial.settings, "encoder": still, **settings})

    @of_dual_encoders(
        "The size of micro-batches changes results only by rounding.",
        "make `loss` a function of the batch's embeddings alone, with the gradients of the whole batch",
        after=("no-global-generator-is-used",),
    )
    def micro_batches_change_nothing(self) -> None:
        whole = self._without_dropout("whole").fit()
        parts = self._without_dropout("parts", micro_batch_tokens=MICRO_BATCH_TOKENS).fit()
        require_same(whole.predict(), parts.predict(), "one batch", "micro-batches")

    @of_dual_encoders(
        "Two workers train what one worker trains, up to rounding.",
        "see each of `self.shard.label_ids` as this worker's labels only, or set many_workers = False",
        after=("no-global-generator-is-used", "another-process-trains-the-same"),
    )
    def two_workers_change_nothing(self) -> None:
        if not self.thing.many_workers:
            raise NotApplicableError("many_workers is False")
        alone = self._without_dropout("alone").fit()
        together = self._without_dropout("two workers").run(workers=2)
        require_same(alone.predict(NUM_LABELS), together, "one worker", "two workers")


def _mutable_parts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Place and type of each list, set or model that is not frozen; free-form mappings are left out."""
    if isinstance(value, list | set):
        yield place, type(value).__name__
    elif isinstance(value, BaseModel):
        if not value.model_config.get("frozen"):
            yield place, f"{type(value).__name__} that is not frozen"
        for name in type(value).model_fields:
            yield from _mutable_parts(getattr(value, name), f"{place}.{name}".lstrip("."))
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _mutable_parts(part, f"{place}[{number}]")


def _file(module: Any) -> Path | None:
    return Path(found) if (found := getattr(module, "__file__", None)) else None


def _named(files: Iterable[Path], found: Callable[[ast.AST], bool]) -> str:
    """The first place in the plugin's files where a node of the code is one that is meant, as "; x.py:3 may be why"."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if found(node):
                return f"; {path.name}:{getattr(node, 'lineno', 0)} may be why"
    return ""


def _has_no_seed(node: ast.AST) -> bool:
    """Whether a node makes a generator without a seed, or asks for the time."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    bare = not node.args and not node.keywords
    return name in ("uuid4", "urandom") or (
        bare and name in ("default_rng", "Random", "RandomState", "time", "time_ns")
    )


def _is_global_draw(node: ast.AST) -> bool:
    """Whether a node calls a function of a global generator, as `np.random.rand` or `random.shuffle`."""
    if not isinstance(node, ast.Call):
        return False
    module, _, name = ast.unparse(node.func).rpartition(".")
    return module in ("np.random", "numpy.random", "random") and name[:1].islower() and name != "default_rng"


def _reads_environment(node: ast.AST) -> bool:
    """Whether a node of Python code is `os.getenv`, `os.environ.get` or a value of `os.environ`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "os.environ"
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.getenv", "os.environ.get", "os.environ.items")


def _line_of_setting(kind: type[BaseModel], name: str) -> str:
    """File and line of a field of a model; empty where its source is not to be had."""
    for owner in kind.__mro__:
        if name in vars(owner).get("__annotations__", {}):
            with suppress(OSError, TypeError):
                lines, start = inspect.getsourcelines(owner)
                own = next((n for n, line in enumerate(lines) if line.strip().startswith((f"{name}:", f"{name} :"))), 0)
                return f"{Path(inspect.getfile(owner)).name}:{start + own}"
    return ""


def require_same(first: Predictions, second: Predictions, one: str, other: str) -> None:
    """Raise `BrokenRuleError` if predictions [N, k] differ by more than rounding; `one` and `other` name them."""
    require(
        first.indices.shape == second.indices.shape,
        f"{one} gives the shape {first.indices.shape}, {other} {second.indices.shape}",
    )
    wrong_N = differs(first, second)
    if wrong_N.any():
        row = int(np.argmax(wrong_N))
        raise BrokenRuleError(
            f"{int(wrong_N.sum())} of {len(wrong_N)} queries differ between {one} and {other}; query {row} gets "
            f"{first.indices[row, :3].tolist()}, then {second.indices[row, :3].tolist()}"
        )
