"""The trials of a suite with the key `tune`, with the configurations that its samples chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.runs.plan import Display, PlannedTrial
from xmcbench.runs.runner import Runner
from xmcbench.runs.tuning import Resolve, RunSearch, Search, choose, journal_path, quality
from xmcbench.trial.method import build_method
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

QUERIES = 1000  # held out for a sample
SPARE = 0.2  # of the training queries, at most
RunTrials = Callable[[Sequence[Trial]], Sequence[Record]]


def tuned_trials(runner: Runner, run: RunSearch) -> list[Trial]:
    """The suite's trials with chosen settings. Each method is tuned once per dataset, for all its seeds.

    How the settings were chosen is noted in `runner.chosen`, from which the records are made.
    """
    suite = runner.suite
    assert suite.tune is not None
    entries = {variant.label: variant.entry for variant in suite.variants}
    tuned: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}  # configuration and how it was chosen
    trials = []
    for trial in (planned.trial for planned in runner.plan()):
        entry, place = entries[trial.label], (trial.dataset, trial.label)
        if not suite.tune.space[entry]:
            trials.append(trial)
            continue
        if place not in tuned:
            base = _with_queries(trial, runner)
            journal = journal_path(runner.store.root, base, suite.tune, entry)
            chosen = choose(base, suite.tune, entry, _resolver(trial), run, journal)
            tuned[place] = chosen.best.record.trial.config, chosen.as_dict()
        config, how = tuned[place]
        trials.append(trial.changed(config=config))
        runner.chosen[trials[-1].key] = how
    return trials


def note_chosen(runner: Runner, records: Sequence[Record]) -> None:
    """Write how the configurations were chosen into the records, also into records that were in the store before."""
    for record in records:
        how = runner.chosen.get(record.key)
        if how and runner.store.record(record.key) != (noted := record.model_copy(update={"chosen": how})):
            runner.store.write_record(noted)


def run_samples(runner: Runner, display: Display) -> RunSearch:
    """Runs the samples that are not in the store yet."""
    return in_order(lambda trials: runner.run(runner.plan_trials(trials), display))


def run_plan(
    runner: Runner,
    plan: Sequence[PlannedTrial],
    display: Display,
    samples: Callable[[Runner, Display], RunSearch] = run_samples,
) -> list[Record]:
    """Tune where the suite asks for it, running samples by `samples`, and run the plan; its records."""
    with runner.local:
        if runner.suite.tune:
            plan = runner.plan_trials(tuned_trials(runner, samples(runner, display)))
        records = runner.run(plan, display)
    note_chosen(runner, records)
    return records


def in_order(run_trials: RunTrials) -> RunSearch:
    """Runs sample after sample. Random ones without halving depend on no result: they may run side by side."""

    def run(search: Search) -> None:
        if search.tune.searcher == "random" and search.tune.scheduler == "none":
            samples = [search.propose() for _ in range(search.tune.num_samples)]
            records = run_trials([search.trial(sample, 0) for sample in samples])
            for sample, record in zip(samples, records, strict=True):
                search.end(sample, [record])
            return
        for _ in range(search.tune.num_samples):
            sample = search.propose()
            rungs: list[Record] = []
            for rung in range(search.rungs):
                rungs += run_trials([search.trial(sample, rung)])
                if not search.report(sample, rung, quality(rungs[-1], search.metric)):
                    break
            search.end(sample, rungs)

    def run_all(search: Search) -> None:
        run(search)
        run_finals(search, run_trials)

    return run_all


def run_finals(search: Search, run_trials: RunTrials) -> None:
    """Train the best samples again with other seeds."""
    if finals := search.finals():
        search.end_finals(finals, run_trials([trial for _, trial in finals]))


def stored_samples(runner: Runner) -> RunSearch:
    """Takes samples from the store. Raises XMCBenchError if one is missing."""

    def look_up(search: Search) -> None:
        samples = search.journal.samples
        records = {key: runner.store.record(key) for sample in samples for key in (*sample.trials, *sample.repeats)}
        if not search.journal.ended(search.tune.num_samples) or None in records.values():
            base = search.base
            raise XMCBenchError(f"{base.label} on {base.dataset} was not tuned to the end: `xmcbench run` does it")
        search.records = {key: record for key, record in records.items() if record is not None}

    return look_up


def queries_of_sample(num_train: int) -> int:
    """The held-out queries that tell samples apart: `QUERIES`, or what small data can spare."""
    return min(QUERIES, max(1, int(SPARE * num_train)))


def _with_queries(trial: Trial, runner: Runner) -> Trial:
    """The trial with held-out queries enough to tell samples apart."""
    assert trial.selection is not None
    queries = max(trial.selection.queries, queries_of_sample(runner.cards[trial.dataset].num_train))
    return trial.changed(selection=trial.selection.model_copy(update={"queries": queries}))


def _resolver(trial: Trial) -> Resolve:
    config = type(build_method(trial)).Config

    def resolve(settings: dict[str, Any]) -> dict[str, Any]:
        resolved: dict[str, Any] = config.model_validate(settings).model_dump(mode="json")
        return resolved

    return resolve
