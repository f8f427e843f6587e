"""The trials of a suite with the key `tune`, with the configurations that its samples chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.run.display import Display
from xmcbench.run.runner import Runner
from xmcbench.run.tuning import Resolve, RunTrials, choose
from xmcbench.trial.build import build_method
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial


def tuned_trials(runner: Runner, run_trials: RunTrials) -> list[Trial]:
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
            chosen = choose(trial, suite.tune, entry, _resolver(trial), run_trials)
            tuned[place] = chosen.best.record.trial.config, chosen.as_dict()
        config, how = tuned[place]
        trials.append(trial.changed(config=config))
        runner.chosen[trials[-1].key] = how
    return trials


def note_chosen(runner: Runner, records: Sequence[Record]) -> None:
    """Write how the configurations were chosen into the records, also into records that were in the store before.

    A sample with the trial's whole budget and settings is that trial; its record then gets the trial's label.
    """
    for record in records:
        how = runner.chosen.get(record.key)
        if how and runner.store.record(record.key) != (noted := record.model_copy(update={"chosen": how})):
            runner.store.write_record(noted)


def run_samples(runner: Runner, display: Display) -> RunTrials:
    """Runs the samples that are not in the store yet."""
    return lambda trials: runner.run(runner.plan_trials(trials), display)


def stored_samples(runner: Runner) -> RunTrials:
    """Takes samples from the store. Raises XMCBenchError if one is missing."""

    def look_up(trials: Sequence[Trial]) -> list[Record]:
        records = []
        for trial in trials:
            record = runner.store.record(trial.key)
            if record is None:
                raise XMCBenchError(f"{trial.label} on {trial.dataset} was not run: `xmcbench run` tunes the suite")
            records.append(record)
        return records

    return look_up


def _resolver(trial: Trial) -> Resolve:
    config = type(build_method(trial)).Config

    def resolve(settings: dict[str, Any]) -> dict[str, Any]:
        resolved: dict[str, Any] = config.model_validate(settings).model_dump(mode="json")
        return resolved

    return resolve
