"""The budget of a trial, and the ledger of what it has spent."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from operator import not_
from pathlib import Path
from time import process_time  # as it is before a method may change the module
from typing import Any, Literal

from pydantic import Field, model_validator

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.trial.record_fields import LARGEST, Amount, Count, Fraction, Frozen

# Evaluation and indexing come after the budgeted work: a slower index must not shorten training.
BUDGETED_STAGES = ("prepare", "train", "mine", "cluster")
UNCHARGED = "uncharged"  # the stage of evaluations on the selection split, and of checkpoints
STAGES = (*BUDGETED_STAGES, "index", "judge", UNCHARGED, "predict", "check", "score")
UNEVEN = 4  # times the mean step: the largest step that excuses an overrun
Clock = Literal["processor", "wall"]
CAPS = frozenset({"peak_bytes"})  # limits that are not used up
OPERATIONS = ("encoder_flops", "scoring_flops", "module_flops", "solver_flops")  # of the ledger; their sum is `flops`


@dataclass
class _Watch:
    """The processor time that this process spends on watching a program: the harness's, not the method's."""

    begun: float | None = None  # what the clock showed as it began to watch; None: it does not
    seconds: float = 0.0  # of earlier watches


_watch = _Watch()


@contextmanager
def watching_program() -> Iterator[None]:
    """Within the block only child processes take processor seconds: this process does no more than watch them."""
    _watch.begun = process_time()
    try:
        yield
    finally:
        _watch.seconds += process_time() - _watch.begun
        _watch.begun = None


def processor_seconds() -> float:
    """Seconds that processors computed for this process: all its threads, and its child processes that have ended."""
    begun = process_time() if _watch.begun is None else _watch.begun
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return begun - _watch.seconds + ended.ru_utime + ended.ru_stime


def peak_memory() -> int:
    """Peak resident memory of this process in bytes, as the operating system reports it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes elsewhere


def forget_peak_memory() -> bool:
    """Start a new peak at the memory this process holds now; False where the system has no way to (only Linux has)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


class TooLargeError(XMCBenchError):
    """A worker needs more memory than the budget allows. The trial ends; batches are never reduced to fit."""


class PassTooLargeError(XMCBenchError):
    """A pass over the training data does not fit into what is left of the budget. It is not started."""


def _limit(description: str) -> Any:
    return Field(None, gt=0, le=LARGEST, description=description)


class Budget(Frozen):
    """Limits on training, which stops at the end of the step that crosses one. At least one must be set.

    A pass over the data (mining, clustering, centroids) that does not fit into what is left is not started.

    `peak_bytes` is not used up by training: a trial that needs more memory ends with the status `too_large`.
    """

    epochs: float | None = _limit("passes over the training queries")
    steps: int | None = _limit("optimiser steps")
    encoder_tokens: int | None = _limit("real tokens encoded: mining counts, padding does not")
    flops: float | None = _limit("operations of encoder, scores, modules and linear solvers; no recomputation")
    device_seconds: float | None = _limit(
        "seconds in the stages " + ", ".join(BUDGETED_STAGES) + ": of processors, or of a GPU that is held"
    )
    teacher_calls: int | None = _limit("different document-label pairs that a teacher is asked about")
    teacher_tokens: int | None = _limit("tokens of a teacher's prompts and answers, cached or not")
    money: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        exclude_if=not_,  # keys are those of budgets that know none
        description="price of a teacher's tokens, cached or not, in the money of its `price`; with those of predict",
    )
    peak_bytes: float | None = _limit("largest memory of a worker (GPU, else resident); never spent")

    @model_validator(mode="after")
    def _some_limit(self) -> Budget:
        if not self.spending():
            known = (name for name in type(self).model_fields if name not in CAPS)
            raise ValueError(f"a budget needs at least one of {', '.join(known)}")
        return self

    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: value for name, value in self.model_dump().items() if value is not None}

    def spending(self) -> dict[str, float]:
        """The limits that are set and that training uses up, by name."""
        return {name: value for name, value in self.limits().items() if name not in CAPS}

    def times(self, share: float) -> Budget:
        """The budget with a share of each limit that training uses up; whole numbers stay whole."""
        parts = {name: share * limit for name, limit in self.spending().items()}
        whole = {name: max(1, round(part)) for name, part in parts.items() if isinstance(getattr(self, name), int)}
        return self.model_copy(update={**parts, **whole})

    def less(self, costs: Mapping[str, float]) -> Budget:
        """The budget without these costs, by name of a limit; not below 0."""
        spending = self.spending().items()
        return self.model_copy(update={name: max(0, limit - costs.get(name, 0)) for name, limit in spending})


class UnknownBudget(Budget):
    """The budget of predictions made by another program: its limits are unknown, so no leaderboard ranks them."""

    @model_validator(mode="after")
    def _some_limit(self) -> UnknownBudget:
        if self.limits():
            raise ValueError("an unknown budget has no limits")
        return self


@dataclass
class _Block:
    """An open block of a ledger. Blocks of one thread nest, also those of a ledger and its parts."""

    ledger: Ledger
    stage: str
    since: tuple[float, float] = (0.0, 0.0)  # what the clocks showed when it was last charged

    def __post_init__(self) -> None:
        self.resume()

    def charge(self) -> None:
        """Charge the seconds since the last charge, of the wall clock and of processors, to the stage."""
        before = self.since
        self.resume()
        clocks = self.ledger.stage_seconds, self.ledger.stage_cpu_seconds
        for seconds, start, now in zip(clocks, before, self.since, strict=True):
            # No clock runs backwards.
            seconds[self.stage] = seconds.get(self.stage, 0.0) + max(0.0, now - start)

    def resume(self) -> None:
        """Charge nothing of what was before."""
        self.since = self.ledger._clock(), self.ledger._cpu_clock()


_open: ContextVar[_Block | None] = ContextVar("_open", default=None)


def current_stage() -> str:
    """The stage that this thread works in; empty outside of every stage."""
    return block.stage if (block := _open.get()) else ""


class OpenStage:
    """The ledger whose stage is open: it is charged for products that no method charges itself, as for seconds."""

    def __init__(self) -> None:
        self._last: _Block | None = None

    def charge_product(self, flops: int) -> None:
        """Charge a matrix product of a method's own, if the budget covers the open stage.

        The threads of a backward pass have no open stage: it is the one that its forward pass was in.
        """
        self._last = block = _open.get() or self._last
        if block is not None and block.stage in BUDGETED_STAGES:
            block.ledger.module_flops += flops


def over_budget(budget: Budget, spent: Mapping[str, Any]) -> dict[str, float]:
    """By how much a trial with the ledger `spent` exceeds its budget: the amount past each limit that is exceeded.

    A limit is exceeded by more than one step (`excused_step`), that of memory by anything. Empty: within its budget.
    This is the one rule for the status `over_budget`, the check of submissions, and the check of equal budgets.
    """
    taken = {name: float(spent.get(name, 0.0)) for name in budget.spending()} | {"peak_bytes": memory_taken(spent)}
    excused = {name: excused_step(name, spent) for name in budget.spending()}
    return {
        name: taken[name] - limit
        for name, limit in budget.limits().items()
        if not taken[name] <= limit + excused.get(name, 0.0)
    }


def excused_step(name: str, spent: Mapping[str, Any]) -> float:
    """What a trial may spend past a limit, since nothing checks the budget within a step: its largest step.

    What is counted comes in steps of about one size: more than `UNEVEN` mean steps excuse no overrun.
    """
    largest = float(spent.get("largest_step", {}).get(name, 0.0))
    steps = spent.get("steps", 0)
    if steps > 1 and name != "device_seconds":
        largest = min(largest, UNEVEN * float(spent.get(name, 0.0)) / steps)
    return largest


# A worker's GPU before its resident memory, the end of training before the whole trial, which predicts and scores too.
_MEMORY = ("worker_device_bytes", "peak_device_bytes", "worker_bytes", "peak_bytes")


def memory_taken(spent: Mapping[str, Any]) -> float:
    """The memory in bytes that a budget's `peak_bytes` limits: of the worker that took the most by the end of training.

    It is a GPU's where the worker has one, else resident memory. Ledgers from before either was noted by worker have
    that of the whole trial.
    """
    known = next((peak for name in _MEMORY if (peak := spent.get(name))), 0.0)
    return float(max(known) if isinstance(known, list) else known)


@dataclass
class Ledger:
    """The amounts that a trial has spent so far: counted, never estimated."""

    epochs: Amount = 0.0
    steps: Count = 0
    queries: Count = 0  # training queries seen, with repeats
    pool_labels: Count = 0  # size of the label pool that the queries of a step are scored against, summed over steps
    pool_positives: Count = 0  # pairs of a query and a positive label in its step's pool, summed over steps
    encoder_tokens: Count = 0
    # A backward pass counts twice its forward pass. Recomputation to save memory does not count.
    encoder_flops: Count = 0  # on real tokens
    scoring_flops: Count = 0  # of products of query and label vectors
    solver_flops: Count = 0  # of linear solvers on sparse rows, at most: iterations times non-zeros
    module_flops: Count = 0  # of all other matrix products: a method's own modules, and what else it multiplies
    # Each document-label pair is charged once per trial, at the cost of its first answer, cached or not.
    teacher_calls: Count = 0
    teacher_prompt_tokens: Count = 0
    teacher_completion_tokens: Count = 0
    teacher_cached: Count = 0  # of the calls, those that the store answered
    teacher_unparsed: Count = 0  # of the calls, those whose reply holds no answer
    teacher_cut: Count = 0  # of these, those whose reply ended at its limit of tokens
    teacher_refused: Count = 0  # of these, those whose prompt the model or its server refused
    money: Amount = 0.0  # price of these tokens, where the teacher's settings have one
    stage_seconds: dict[str, Amount] = field(default_factory=dict)  # by the wall clock
    stage_cpu_seconds: dict[str, Amount] = field(default_factory=dict)  # of processors: `processor_seconds`
    clock: Clock = "processor"  # which of both device seconds are; the wall clock for a worker that holds a GPU
    peak_bytes: Count = 0  # peak resident memory of the worker that took the most
    worker_bytes: list[Count] = field(default_factory=list)  # peak resident memory per worker, at the end of training
    worker_device_bytes: list[Count] = field(default_factory=list)  # peak memory of each worker's GPU, likewise
    largest_step: dict[str, Amount] = field(default_factory=dict)  # most spent of each limit between two checks
    shortlist_recall: Fraction | None = None  # of the last approximate search for shortlists, measured on a sample
    not_counted: list[str] = field(default_factory=list)  # counts that nobody knows: an outside program computed
    refused_pass: Count = 0  # 1 where a pass over the data did not fit into what was left of the budget
    _clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)  # a dry run has its own
    _cpu_clock: Callable[[], float] = field(default=processor_seconds, repr=False, compare=False)

    @property
    def device_seconds(self) -> float:
        """The seconds of the budgeted stages, also of one that is still open."""
        self._settle()
        seconds = self.stage_cpu_seconds if self.clock == "processor" else self.stage_seconds
        return sum(seconds.get(stage, 0.0) for stage in BUDGETED_STAGES)

    def device_clock(self) -> float:
        """The clock of device seconds, for differences: its start is arbitrary. It also runs outside of stages."""
        return self._cpu_clock() if self.clock == "processor" else self._clock()

    def _settle(self) -> None:
        """Charge the seconds of the open stage until now."""
        if (block := _open.get()) is not None and block.ledger is self:
            block.charge()

    @property
    def flops(self) -> int:
        return sum(getattr(self, name) for name in OPERATIONS)

    @property
    def teacher_tokens(self) -> int:
        return self.teacher_prompt_tokens + self.teacher_completion_tokens

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the seconds of the block to stage `name`, without those of nested stages.

        Raises `UnknownNameError` for a name that is not one of `STAGES`.
        """
        if name not in STAGES:
            raise UnknownNameError("stage", name, STAGES)
        if (outer := _open.get()) is not None:
            outer.charge()
        block = _Block(self, name)
        opened = _open.set(block)
        try:
            yield
        finally:
            block.charge()
            _open.reset(opened)
            if outer is not None:
                outer.resume()

    @contextmanager
    def uncharged(self) -> Iterator[None]:
        """Do not charge the tokens, FLOPs and seconds of the block (evaluation on the selection split)."""
        counts = {name: getattr(self, name) for name in ("encoder_tokens", *OPERATIONS)}
        self._settle()
        clocks = "stage_seconds", "stage_cpu_seconds"
        before = {name: dict(getattr(self, name)) for name in clocks}
        try:
            with self.stage(UNCHARGED):
                yield
        finally:
            for name, count in counts.items():
                setattr(self, name, count)
            for name, seconds in before.items():  # those of stages within the block are uncharged too
                spent = sum(getattr(self, name).values()) - sum(seconds.values())
                setattr(self, name, seconds | {UNCHARGED: seconds.get(UNCHARGED, 0.0) + max(0.0, spent)})

    @contextmanager
    def part(self) -> Iterator[Ledger]:
        """Yield a ledger for a part of training with its own limits and schedule, and add it to this one at the end."""
        part = Ledger(clock=self.clock, _clock=self._clock, _cpu_clock=self._cpu_clock)
        try:
            yield part
        finally:
            self._add(part)

    def _add(self, part: Ledger) -> None:
        """Add the counts of `part`. Of peak memory and largest steps, keep the larger value."""
        for name, more in part.state().items():
            mine = getattr(self, name)
            if name == "clock":
                more = mine
            elif isinstance(more, dict):
                join = max if name == "largest_step" else float.__add__
                more = mine | {key: join(float(mine.get(key, 0.0)), float(value)) for key, value in more.items()}
            elif name == "not_counted":
                more = sorted({*mine, *more})
            elif isinstance(more, list) or name == "shortlist_recall":
                more = more or mine
            else:
                more = max(mine, more) if name == "peak_bytes" else mine + more
            setattr(self, name, more)

    def spent(self, limit: str) -> float:
        """The amount spent of the limit named `limit`."""
        return float(getattr(self, limit))

    @contextmanager
    def between_checks(self, budget: Budget) -> Iterator[None]:
        """Measure what the block spends of each limit; within it nothing checks the budget, as in an optimiser step.

        A trial may exceed its budget by at most the largest of these amounts, `largest_step`.
        """
        before = {name: self.spent(name) for name in budget.spending()}
        yield
        for name, spent in before.items():
            self.note_step(name, self.spent(name) - spent)

    def note_step(self, limit: str, amount: float) -> None:
        """Note an amount of a limit that was spent between two checks of the budget."""
        self.largest_step[limit] = max(amount, self.largest_step.get(limit, 0.0))

    def left(self, budget: Budget) -> dict[str, float]:
        """What is left of each limit that training uses up, by name; negative where it was crossed."""
        return {name: limit - self.spent(name) for name, limit in budget.spending().items()}

    def fraction(self, budget: Budget) -> float:
        """The fraction spent of the limit that is closest to being used up. Training stops at 1 or more."""
        limits = budget.spending().items()
        return max(self.spent(name) / limit if limit else math.inf for name, limit in limits)

    def require(self, budget: Budget, what: str, costs: dict[str, float]) -> None:
        """Raise PassTooLargeError unless `costs`, by name of a limit, fit into what is left of the budget."""
        for name, limit in budget.spending().items():
            cost, left = costs.get(name, 0.0), limit - self.spent(name)
            if cost > left:
                self.refused_pass = 1
                unit = name.replace("_", " ")
                raise PassTooLargeError(f"{what} takes {cost:,.10g} {unit}, {left:,.10g} of {limit:,.10g} are left")

    def over(self, budget: Budget) -> dict[str, float]:
        """By how much each limit is exceeded (`over_budget`)."""
        return over_budget(budget, self.as_dict())

    def check_memory(self, budget: Budget, peak: float) -> None:
        """Raise `TooLargeError` if `peak`, the memory of a worker in bytes, exceeds the budget."""
        if budget.peak_bytes is not None and "peak_bytes" in over_budget(budget, {"peak_bytes": peak}):
            raise TooLargeError(
                f"a worker took {peak / 1e9:.2f} GB of memory by step {self.steps}, "
                f"the budget allows {budget.peak_bytes / 1e9:.2f} GB"
            )

    def note_recall(self, recall: float) -> None:
        """Enter the measured recall of an approximate search for shortlists."""
        self.shortlist_recall = recall

    def as_dict(self) -> dict[str, Any]:
        """The ledger as a record stores it: the counts and the totals derived from them, without those nobody knows."""
        totals = {name: getattr(self, name) for name in ("device_seconds", "flops", "teacher_tokens")}
        return {name: value for name, value in {**self.state(), **totals}.items() if name not in self.not_counted}

    def state(self) -> dict[str, Any]:
        """The counts from which `Ledger(**state)` restores this ledger."""
        self._settle()
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}
