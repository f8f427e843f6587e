"""The rules of methods, and of those that train on several workers or in micro-batches."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from xmcbench.runs.file_guard import Sandbox
from xmcbench.runs.job import variables
from xmcbench.runs.predicting import Sample, ask
from xmcbench.trial.budget import UNCHARGED, Budget
from xmcbench.trial.meter import metering, uncharged_work
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import why_not_recordable
from xmcbench.trial.run import Progress, TrainingLog
from xmcbench_plugins.conformance.code_reading import (
    first_place,
    has_no_seed,
    is_global_draw,
    mutable_parts,
    reads_environment,
)
from xmcbench_plugins.conformance.rules import BrokenRuleError, NotApplicableError, require, rule
from xmcbench_plugins.conformance.smoke import MOST_LINES
from xmcbench_plugins.conformance.tiny_trial import BUDGET, NUM_LABELS, ODD, ONE_LABEL, K
from xmcbench_plugins.conformance.tried_method import TriedMethod, require_same

LONGER = Budget(steps=40)  # long enough to learn the tiny data
UNCHARGED_SECONDS = 1.0  # of processors, which fit may take on tiny data and charge to no stage
CHILD_SECONDS = 0.1  # of processors, which child processes of fit may take
LARGEST_MODEL = 500_000_000  # bytes of a model of 16 labels
MICRO_BATCH_TOKENS = 96  # a few texts of the tiny datasets
ODD_REMEDY = "handle empty texts and labels or queries without pairs, or return a reason from skip(card)"
of_dual_encoders = partial(rule, section="A method that is a dual encoder")


class Interrupted(Exception):
    """Ends a training, as a kill would."""


class MethodSubject(TriedMethod):
    """The rules that a method is checked by, in their order."""

    section = "A method"

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
        for place, kind in mutable_parts(config, ""):
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
            with self.naming("predict"):
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
        from xmcbench_plugins.conformance.outside_count import CLOSE, counting_from_outside

        first = self.fitted.log.ledger
        again, uncharged = self.again
        ledger = again.log.ledger
        charged = sum(ledger.stage_cpu_seconds.values())
        found = f"fit computed {uncharged:.1f} seconds in no stage, and charged {charged:.1f} ({self.place('fit')})"
        require(uncharged <= max(UNCHARGED_SECONDS, charged), found)
        nobody = not ledger.flops and "flops" not in ledger.not_counted and charged > UNCHARGED_SECONDS
        found = f"fit computed {charged:.1f} seconds, and no operation of them is counted ({self.place('fit')})"
        require(not nobody, found)
        for name in ("encoder_tokens", "flops"):
            before, after = int(first.spent(name)), int(ledger.spent(name))
            found = f"fit charged {before:,} {name}, and {after:,} when it ran again: a cache is charged too"
            require(abs(before - after) <= CLOSE * max(before, after), f"{found} ({self.place('fit')})")
        log = TrainingLog()
        with metering() as meter, log.ledger.stage("prepare"):
            fitted = replace(self.trial, name="metered").fit(log=log)
        problem = why_not_recordable(log.ledger.as_dict(), log.curve)
        problem = problem or uncharged_work(meter, log.ledger, BUDGET, NUM_LABELS, len(log.curve))
        require(not problem, problem)
        children = meter.children_cpu_seconds - meter.program_cpu_seconds
        named = log.ledger.teacher_calls or "flops" in log.ledger.not_counted
        found = f"child processes of fit computed {children:.1f} seconds, whose operations nobody counts"
        require(children <= CHILD_SECONDS or bool(named), f"{found} ({self.place('fit')})")
        with metering() as meter, counting_from_outside() as asked:
            fitted.method.predict(list(fitted.dataset.test.texts), K)
        require(not meter.updates and not asked.gradient_flops, "predict trained")

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
        free = 0 if log.curve else count.flops[UNCHARGED]
        require(not free, f"fit multiplied {free:,} operations in uncharged(), which is for evaluations on the curve")
        problem = miscounted(count, log.ledger, frozen=frozen)
        require(not problem, problem)

    @rule("A method learns.", "give it more steps, another learning rate, or the labels' texts", warns=True)
    def it_beats_the_most_frequent_labels(self) -> None:
        fitted = replace(self.trial, name="longer", budget=LONGER).fit()
        train = fitted.dataset.train
        found = ask(fitted.method, list(train.texts), 1).indices[:, 0]
        popular = np.full_like(found, np.argmax(train.targets.sum(axis=0)))
        hits = [float(train.targets[np.arange(len(found)), labels].mean()) for labels in (found, popular)]
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
                require(not reads_environment(node), f"{path.name}:{getattr(node, 'lineno', 0)} reads os.environ")

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
        draws = f"fit draws from {{}}{first_place(self.files, is_global_draw)}"
        require(before[0] == after[0], draws.format("the module random"))
        require(before[1] == after[1], draws.format("numpy.random"))
        names = "the first training", f"the second with the same seed{first_place(self.files, has_no_seed)}"
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
        with self.naming("save"):
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
        with self.naming("predict"):
            fitted.predict()

    @rule("A dataset may have a single label.", ODD_REMEDY, after=("seeds-share-nothing", "odd-texts-are-handled"))
    def a_single_label_is_handled(self) -> None:
        fitted = self.fit_on(ONE_LABEL)
        with self.naming("predict"):
            fitted.predict()

    @of_dual_encoders(
        "The size of micro-batches changes results only by rounding.",
        "make `loss` a function of the batch's embeddings alone, with the gradients of the whole batch",
        after=("no-global-generator-is-used",),
    )
    def micro_batches_change_nothing(self) -> None:
        whole = self.without_dropout("whole").fit()
        parts = self.without_dropout("parts", micro_batch_tokens=MICRO_BATCH_TOKENS).fit()
        require_same(whole.predict(), parts.predict(), "one batch", "micro-batches")

    @of_dual_encoders(
        "Two workers train what one worker trains, up to rounding.",
        "see each of `self.shard.label_ids` as this worker's labels only, or set many_workers = False",
        after=("no-global-generator-is-used", "another-process-trains-the-same"),
    )
    def two_workers_change_nothing(self) -> None:
        if not self.thing.many_workers:
            raise NotApplicableError("many_workers is False")
        alone = self.without_dropout("alone").fit()
        together = self.without_dropout("two workers").run(workers=2)
        require_same(alone.predict(NUM_LABELS), together, "one worker", "two workers")
