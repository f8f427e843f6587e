"""The trials of a suite that tunes its methods: those of the configurations that were chosen."""

from __future__ import annotations

from collections.abc import Sequence

from xmcbench.errors import XMCBenchError
from xmcbench.run.runner import Display, Runner
from xmcbench.suite.tuning import Carry, Check, choose
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial


def tuned_trials(runner: Runner, carry: Carry) -> list[Trial]:
    """The suite's trials with their settings chosen, once for all seeds of a method on a dataset.

    What is chosen is noted in `runner.chosen`, which puts it into the records.
    """
    suite = runner.suite
    assert suite.tune is not None
    entries = {variant.label: variant.entry for variant in suite.variants}
    configs: dict[tuple[str, str], tuple[dict[str, object], dict[str, object]]] = {}
    trials = []
    for trial in (step.trial for step in runner.plan()):
        entry, place = entries[trial.label], (trial.dataset, trial.label)
        if not suite.tune.space[entry]:
            trials.append(trial)
            continue
        if place not in configs:
            chosen = choose(trial, suite.tune, entry, _check(runner, trial), carry)
            configs[place] = chosen.best.record.trial.config, chosen.told()
        config, told = configs[place]
        trials.append(trial.changed(config=config))
        runner.chosen[trials[-1].key] = told
    return trials


def note_chosen(runner: Runner, records: Sequence[Record]) -> None:
    """Have the records of chosen configurations say so, those too that were in the store already.

    A sample with the whole budget of its trial is that trial: it then goes by the trial's label.
    """
    for record in records:
        told = runner.chosen.get(record.key)
        if told and runner.store.record(record.key) != (noted := record.model_copy(update={"chosen": told})):
            runner.store.write_record(noted)


def running(runner: Runner, display: Display) -> Carry:
    """Runs the samples that the store does not hold yet."""
    return lambda trials: runner.run(runner.steps(trials), display)


def kept(runner: Runner) -> Carry:
    """Takes samples from the store. Raises XMCBenchError where one is missing."""

    def find(trials: Sequence[Trial]) -> list[Record]:
        found = [runner.store.record(trial.key) for trial in trials]
        for trial, record in zip(trials, found, strict=True):
            if record is None:
                raise XMCBenchError(f"{trial.label} on {trial.dataset} was not run: `xmcbench run` tunes the suite")
        return [record for record in found if record]

    return find


def _check(runner: Runner, trial: Trial) -> Check:
    config = type(runner.method(trial)).Config

    def resolved(settings: dict[str, object]) -> dict[str, object]:
        made: dict[str, object] = config.model_validate(settings).model_dump(mode="json")
        return made

    return resolved
