"""Runs the samples of a tuning on Ray Tune: each is a Tune trial of one worker, and ASHA decides which go on.

The store holds the trials of all samples, and the journal which samples there are. Nothing is read back from the files
that Tune writes: they are deleted when the tuning ends. `docs/executors.md` explains the design.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

from xmcbench.errors import import_extra
from xmcbench.runs.executor import Death, RunningTrial, Task
from xmcbench.runs.job import variables
from xmcbench.runs.plan import Action, Display, PlannedTrial
from xmcbench.runs.ray import PURPOSE, RESTARTS, RayExecutor, run_sample
from xmcbench.runs.runner import Runner
from xmcbench.runs.tuning import FOLDER, Proposal, RunSearch, Search, quality, run_finals, run_samples
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Record, Status

ENVIRONMENT = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl+C ends the run at once, as with other trials
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a table of the experiment even where nothing is asked for
}


def on_tune(executor: RayExecutor, runner: Runner, display: Display) -> RunSearch:
    """Runs samples on Ray Tune. Samples of several workers, and those that share no store, run as other trials do."""

    def run(search: Search) -> None:
        needs = runner.needs(search.base)
        if needs.workers > 1 or executor.storage is not None:
            run_samples(runner, display)(search)
            return
        with executor:
            executor.check(needs)
            with variables(**ENVIRONMENT):
                samples = _Samples(search, runner, display, executor)
                try:
                    samples.fit(needs)
                finally:
                    samples.kill()
        run_finals(search, lambda trials: runner.run(runner.plan_trials(trials), display))

    return run


class _Sample:
    """A sample that runs: its proposal, its trials by rung, and the one that is running."""

    def __init__(self, proposal: Proposal, planned: list[PlannedTrial]) -> None:
        self.proposal, self.planned = proposal, planned
        self.records: list[Record] = []
        self.running: RunningTrial | None = None
        self.actor: Any = None


class _Samples:
    """The samples of a search, by Tune's names of them."""

    def __init__(self, search: Search, runner: Runner, display: Display, executor: RayExecutor) -> None:
        self._search, self._runner, self._display, self._executor = search, runner, display, executor
        self._samples: dict[str, _Sample] = {}

    def fit(self, needs: Needs) -> None:
        """Run all samples."""
        tune = import_extra("ray.tune", "ray", PURPOSE)
        rungs, growth = self._search.rungs, self._search.tune.reduction
        halving = import_extra("ray.tune.schedulers", "ray", PURPOSE).ASHAScheduler(
            time_attr="resource", max_t=growth ** (rungs - 1), reduction_factor=growth
        )
        folder = self._runner.store.root / FOLDER / "ray"
        tuner = tune.Tuner(
            tune.with_resources(run_sample, {"CPU": needs.cpus, "GPU": needs.gpus}),
            tune_config=tune.TuneConfig(
                metric="quality",
                mode="max",
                search_alg=_searcher(self),
                scheduler=halving if rungs > 1 else None,
                num_samples=self._search.tune.num_samples,
                max_concurrent_trials=self._executor.capacity(needs),
            ),
            run_config=tune.RunConfig(
                storage_path=str(folder),
                failure_config=tune.FailureConfig(max_failures=RESTARTS),
                callbacks=[_callback(self)],
                verbose=0,
            ),
        )
        try:
            tuner.fit()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self) -> None:
        """End the workers that are still there."""
        for sample in self._samples.values():
            if sample.actor is not None:
                self._executor.kill(sample.actor)

    def propose(self, name: str) -> dict[str, Any]:
        """The next sample, as `run_sample` takes it."""
        runner, proposal = self._runner, self._search.propose()
        planned = runner.plan_trials([self._search.trial(proposal, rung) for rung in range(self._search.rungs)])
        self._samples[name] = _Sample(proposal, planned)
        for one in planned:
            if one.action not in (Action.RUN, Action.RESUME):
                runner.outcome(one)  # its record is in the store from now on
        again = [one.record.ended if one.record and one.action is Action.RUN else None for one in planned]
        return {
            "name": name,
            "jobs": [runner.job(one.trial).model_dump_json() for one in planned],
            "again": again,
            "metric": self._search.metric,
            "growth": self._search.tune.reduction,
            "environment": self._executor.environment(),
            "mailbox": self._executor.mailbox,
        }

    def receive(self) -> None:
        """Handle what the workers have sent, and end samples that take too long."""
        for name, event in self._executor.events():
            sample = self._samples[name]
            if "rung" in event:
                self._begin(sample, event["rung"], event["actor"])
            elif sample.running:
                sample.running.receive(event)
        for sample in self._samples.values():
            if sample.running and sample.running.disk_fault:
                sample.running.outcome(sample.running.timed_out)  # raises StoreError
            if sample.running and sample.running.overdue:
                sample.running.outcome(sample.running.timed_out)
                self._executor.kill(sample.actor)  # Tune starts it again; it finds the record

    def advanced(self, name: str, rung: int) -> None:
        """A sample's trial with the budget of a rung has ended, and its record is in the store."""
        self.receive()
        sample = self._samples[name]
        if rung < len(sample.records):  # told before the worker died
            return
        planned = sample.planned[rung]
        record = self._runner.store.record(planned.trial.key)
        assert record is not None, "the worker writes the record before it reports"
        self._note(sample, record)
        self._search.report(sample.proposal, rung, quality(record, self._search.metric))

    def ended(self, name: str) -> None:
        """A sample ended: by itself, since the scheduler stopped it, or since its worker died too often."""
        self.receive()
        sample = self._samples[name]
        if sample.running:
            message = f"the worker died and was restarted at most {RESTARTS} times"
            death = Death(Status.ERROR, "WorkerDied", message)
            self._note(sample, sample.running.outcome(lambda: death))
        self._search.end(sample.proposal, sample.records)

    def _begin(self, sample: _Sample, rung: int, actor: Any) -> None:
        planned, total = sample.planned[rung], self._search.tune.num_samples
        needs, timeout = self._runner.needs(planned.trial), self._runner.suite.timeout
        task = Task(self._runner.job(planned.trial), needs, timeout, partial(self._display.progress, planned))
        sample.running, sample.actor = RunningTrial(task), actor
        self._display.begin(planned, sample.proposal.number + 1, total)

    def _note(self, sample: _Sample, record: Record) -> None:
        self._display.end(sample.planned[len(sample.records)], record)
        sample.records.append(record)
        sample.running = None


def _searcher(samples: _Samples) -> Any:
    """The interface through which Tune asks for samples."""
    search = import_extra("ray.tune.search", "ray", PURPOSE)

    class Searcher(search.Searcher):  # type: ignore[name-defined, misc]
        def suggest(self, trial_id: str) -> dict[str, Any]:
            return samples.propose(trial_id)

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            samples.advanced(trial_id, result["rung"])

        def on_trial_complete(
            self,
            trial_id: str,
            result: dict[str, Any] | None = None,
            error: bool = False,  # noqa: ARG002  (of the interface)
        ) -> None:
            if result:
                samples.advanced(trial_id, result["rung"])
            samples.ended(trial_id)

        def save(self, checkpoint_path: str) -> None:
            """Nothing: the journal is written when a sample is proposed."""

    return Searcher(metric="quality", mode="max")


def _callback(samples: _Samples) -> Any:
    """What Tune calls in every turn of its loop."""

    class Callback(import_extra("ray.tune", "ray", PURPOSE).Callback):  # type: ignore[misc]
        def on_step_end(self, **_: Any) -> None:
            samples.receive()

    return Callback()
