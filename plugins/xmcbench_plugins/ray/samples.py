"""Runs the samples of a tuning on Ray Tune: each is a Tune trial of one worker, and ASHA decides which go on.

The store holds the trials of all samples, and the journal which samples there are. Nothing is read back from the files
that Tune writes: they are deleted when the tuning ends. In the cluster, `run_sample` runs one sample.
"""

from __future__ import annotations

import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from xmcbench.runs.executor import RunningTrial
from xmcbench.runs.job import Job, WorkerRank
from xmcbench.runs.plan import Action, Display, PlannedTrial
from xmcbench.runs.runner import Runner
from xmcbench.runs.tuning import FOLDER, Sample, Search, quality
from xmcbench.suite.resources import Needs
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.store import Store
from xmcbench_plugins.ray.executor import RESTARTS, RayExecutor, ray_module, run_attempt, use_own_gpus

WORST = -2.0  # the quality of a sample that has none: metrics, and negatives of errors, are not so low


def run_samples(executor: RayExecutor, display: Display, runner: Runner, search: Search) -> bool:
    """Run samples on Ray Tune. Samples of several workers, and those that share no store, run as other trials do."""
    needs = runner.needs(search.base)
    if needs.workers > 1 or executor.storage is not None:
        return False
    with executor:
        executor.check(needs)
        _Samples(search, runner, display, executor).fit(needs)
        search.run_finals(lambda trials: runner.run(runner.plan_trials(trials), display))
    return True


@dataclass
class _TuneTrial:
    """A sample as a trial of Ray Tune."""

    sample: Sample
    planned: list[PlannedTrial]  # its trials, by rung
    running: RunningTrial | None = None  # the one of them that runs
    actor: Any = None  # the process of the cluster that runs them


@dataclass(frozen=True)
class Actor:
    """The process of the cluster that runs a sample."""

    handle: Any


@dataclass(frozen=True)
class Begun:
    """A sample's trial of a rung has begun."""

    rung: int


class _Samples:
    """The samples of a search, by Tune's names of them."""

    def __init__(self, search: Search, runner: Runner, display: Display, executor: RayExecutor) -> None:
        self._search, self._runner, self._display, self._executor = search, runner, display, executor
        self._trials: dict[str, _TuneTrial] = {}

    def fit(self, needs: Needs) -> None:
        """Run all samples."""
        tune = ray_module("ray.tune")
        rungs, growth = self._search.tune.rungs, self._search.tune.reduction
        halving = ray_module("ray.tune.schedulers").ASHAScheduler(
            time_attr="resource", max_t=growth ** (rungs - 1), reduction_factor=growth
        )
        folder = self._runner.store.root / FOLDER / "ray"
        tuner = tune.Tuner(
            tune.with_resources(run_sample, {"CPU": needs.cpus, "GPU": self._executor.gpus(needs)}),
            tune_config=tune.TuneConfig(
                metric="quality",
                mode="max",
                search_alg=_searcher(self),
                scheduler=halving if rungs > 1 else None,
                num_samples=self._search.tune.num_samples,
                max_concurrent_trials=self._executor.samples_at_once(needs),
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
            for trial in self._trials.values():  # workers that are still there
                if trial.actor is not None:
                    ray_module("ray").kill(trial.actor)

    def propose(self, name: str) -> dict[str, Any]:
        """The next sample, as `run_sample` takes it."""
        runner, search, sample = self._runner, self._search, self._search.propose()
        # One by one: small budgets of two rungs may be equal, and so are the trials.
        planned = [runner.plan_trials([search.trial(sample, rung)])[0] for rung in range(search.tune.rungs)]
        self._trials[name] = _TuneTrial(sample, planned)
        for one in planned:
            if one.action not in (Action.RUN, Action.RESUME):
                runner.outcome(one)  # its record is in the store from now on
        again = [one.record.ended if one.record and one.action is Action.RUN else None for one in planned]
        return {
            "name": name,
            "jobs": [runner.job(one.trial).model_dump_json() for one in planned],
            "again": again,
            "metric": search.metric,
            "growth": search.tune.reduction,
            "environment": self._executor.environment(),
            "mailbox": self._executor.mailbox,
        }

    def receive(self) -> None:
        """Handle what the workers have sent, and end samples that take too long. Raises StoreError if a disk fails."""
        for name, event in self._executor.events():
            trial = self._trials[name]
            if isinstance(event, Actor):
                trial.actor = event.handle
            elif isinstance(event, Begun):
                self._begin(trial)
            elif trial.running:
                trial.running.receive(event)
        for trial in self._trials.values():
            running = trial.running
            if running and (running.disk_fault or running.overdue):
                self._finish(trial, running.outcome(None))
                ray_module("ray").kill(trial.actor)  # Tune starts it again, and it finds the record

    def advanced(self, name: str, rung: int) -> None:
        """A sample's trial with the budget of a rung has ended, and its record is in the store."""
        self.receive()
        trial = self._trials[name]
        if rung < len(trial.sample.records):  # reported before the worker died
            return
        record = self._runner.store.record(trial.planned[rung].trial.key)
        assert record is not None, "the worker writes the record before it reports"
        self._report(trial, record)

    def ended(self, name: str) -> None:
        """A sample ended: by itself, since the scheduler stopped it, or since its worker died too often."""
        self.receive()
        trial = self._trials[name]
        if not trial.sample.records:
            self._begin(trial)  # if no worker lived long enough to say so
        if trial.running:
            message = f"the worker died and was restarted at most {RESTARTS} times"
            death = Status.ERROR, Failure(type="WorkerDied", message=message)
            self._report(trial, trial.running.outcome(death))
        self._search.end(trial.sample)

    def _begin(self, trial: _TuneTrial) -> None:
        """The next trial of a sample begins, unless a new worker continues it."""
        if trial.running:
            return
        planned, total = trial.planned[len(trial.sample.records)], self._search.tune.num_samples
        trial.running = RunningTrial(self._runner.task(planned.trial, partial(self._display.progress, planned)))
        self._display.begin(planned, trial.sample.number + 1, total)

    def _report(self, trial: _TuneTrial, record: Record) -> None:
        own = trial.planned[len(trial.sample.records)].trial  # another sample may have the same settings
        if trial.running:
            self._finish(trial, record)
        self._search.report(trial.sample, record.model_copy(update={"trial": own}))

    def _finish(self, trial: _TuneTrial, record: Record) -> None:
        self._display.end(trial.planned[len(trial.sample.records)], record)
        trial.running = None


def _searcher(samples: _Samples) -> Any:
    """The interface through which Tune asks for samples."""

    class Searcher(ray_module("ray.tune.search").Searcher):  # type: ignore[misc]
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

    class Callback(ray_module("ray.tune").Callback):  # type: ignore[misc]
        def on_step_end(self, **_: Any) -> None:
            samples.receive()

    return Callback()


def run_sample(config: dict[str, Any]) -> None:
    """Run a sample as a trial of Ray Tune, in a process of the cluster: its trials by rung, one after another.

    Reports after each of them; Tune ends this process where the sample is not to go on. Trials that the store has are
    not run again, but for failures that are tried again: `again` has the ends of their records.
    """
    os.environ.update(config["environment"])
    use_own_gpus()
    mailbox, name = config["mailbox"], config["name"]
    mailbox.put((name, Actor(ray_module("ray").get_runtime_context().current_actor)))
    for rung, (content, again) in enumerate(zip(config["jobs"], config["again"], strict=True)):
        job = Job.model_validate_json(content)
        store, key = Store(job.store), job.trial.key
        with store.lock(key):
            record = store.record(key)
            if record is None or record.ended == again:
                mailbox.put((name, Begun(rung)))
                store.drop_record(key)
                store.write_job(key, job)
                with ThreadPoolExecutor(1) as thread:  # Landlock restricts it for good
                    record = thread.submit(run_attempt, job, WorkerRank(own_thread=True), name, mailbox).result()
        assert record is not None, "the only worker is worker 0"
        value = quality(record, config["metric"])
        known = math.isfinite(value)
        resource = config["growth"] ** rung
        ray_module("ray.tune").report({"rung": rung, "resource": resource, "quality": value if known else WORST})
        if not known:
            return
