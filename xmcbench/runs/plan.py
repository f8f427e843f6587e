"""The plan of a run: the action for each trial and its reason; what a display hears of the run, and how it ended; and
what can be said of trials before they run: a budget that is spent before the first step, too few steps, parts that will
not run, texts that are cut, and more asked for than there is.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from xmcbench.data.extent import MUCH_CUT, Extent
from xmcbench.data.lengths import share_cut
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.suite.suite import Extents
from xmcbench.trial.budget import over_budget
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.record import FEW_STEPS, SMALLEST_BATCH, Record, Status
from xmcbench.trial.run import TrialProgress
from xmcbench.trial.trial import Trial


class Action(StrEnum):
    """The action of a run for a trial."""

    HIT = "hit"  # nothing: its result is in the store
    RUN = "run"
    RESUME = "resume"  # it was started and has no outcome yet
    SKIP = "skip"  # the method does not apply to the dataset
    TOO_LARGE = "too large"  # a worker would need more memory than the budget allows
    FAILED = "failed"  # it failed before; only --retry runs it again


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, and what the run will do about it."""

    trial: Trial
    action: Action
    reason: str = ""
    record: Record | None = None  # the outcome that is in the store


def select(trials: Sequence[Trial], only: Sequence[str]) -> list[Trial]:
    """The trials whose label, or `dataset/label`, is in `only` or matches a shell pattern of it; all if it is empty."""
    for pattern in only:
        if not any(trial.matches(pattern) for trial in trials):
            labels = ", ".join(dict.fromkeys(trial.label for trial in trials))
            raise XMCBenchError(f"--only {pattern}: no trial matches (labels: {labels})")
    return [trial for trial in trials if not only or any(map(trial.matches, only))]


PASSED = frozenset({Status.OK, Status.SKIPPED, Status.TOO_LARGE})


def exit_code(records: Sequence[Record]) -> int:
    """0 if every trial is ok, skipped or too large for its budget, else 1."""
    return 0 if all(record.status in PASSED for record in records) else 1


def explain(record: Record) -> str:
    """The status of a trial, and the reason if it is not ok, on one line."""
    if record.failure:
        return f"{record.status}: {record.failure.message.splitlines()[0]}"
    if record.status is not Status.OVER_BUDGET:
        return str(record.status)
    limits, over = record.trial.budget.limits(), over_budget(record.trial.budget, record.spent)
    return f"{record.status}: " + ", ".join(
        f"{name} {limits[name] + over[name]:g} of {limits[name]:g}" for name in over
    )


class Display(Protocol):
    """Receives the events of a run. Trials may run side by side: every call names its trial."""

    def begin(self, planned: PlannedTrial, number: int, total: int) -> None:
        """A trial starts, the `number`th of `total`."""

    def wait(self, planned: PlannedTrial) -> None:
        """This run waits, because another run on the same store runs the trial."""

    def expect(self, seconds: float | None) -> None:
        """The run is expected to take that many more seconds; None where nothing is known. Called after each event."""

    def progress(self, planned: PlannedTrial, progress: TrialProgress) -> None:
        """A trial advanced."""

    def end(self, planned: PlannedTrial, record: Record) -> None:
        """A trial ended, well or badly."""


def remarks(
    trials: Sequence[Trial], extents: Extents, steps: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> list[str]:
    """Lines that say what keeps trials from what their settings ask for.

    Trials of a dataset whose lines differ in numbers alone share one line, which has the range of each number. `steps`
    are the steps of planned trials, by dataset and label; for other trials they are estimated from the words of the
    texts.
    """
    first = {(trial.dataset, trial.label): trial for trial in reversed(trials)}
    labels: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    same: dict[str, dict[str, frozenset[str]]] = defaultdict(dict)
    for trial in reversed(first.values()):
        data = extents.get(trial.dataset)
        if data is None:
            continue
        method = build_method(trial)
        spent = method.foreseen(data, trial.budget)
        counted = steps.get((trial.dataset, trial.label), spent.get("steps", 0))
        texts = [*_of_trial(trial, method, data, spent, counted)]
        parts = dict.fromkeys((method, method.encoder_training(trial.budget)[0]))
        texts += [text for part in parts for text in (*_of_counts(part, data), *part.notes())]
        for text in texts:
            labels[trial.dataset, NUMBER.sub("#", text)][trial.label].append(text)
        settings = frozenset[str]().union(*method.idle_parts(spent).values())
        config = {name: value for name, value in trial.config.items() if name not in settings}
        identity = json.dumps([trial.method, trial.dataset, config, trial.budget.limits()], sort_keys=True)
        same[identity][trial.label] = settings
    told = [
        f"{_first(list(names))} on {dataset}: {_ranges([text for own in names.values() for text in own])}"
        for (dataset, _), names in labels.items()
    ]
    alike = _of_alike([group for group in same.values() if len(group) > 1])
    return [*told, *alike, *filter(None, [network_note(trials)])]


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _ranges(texts: Sequence[str]) -> str:
    """One text for several that differ at most in numbers: each of these is the range of its values.

    >>> _ranges(["about 5 of 9 steps", "about 1,200 of 9 steps"])
    'about 5 to 1,200 of 9 steps'
    """
    places = iter(zip(*map(NUMBER.findall, texts), strict=True))

    def span(_: re.Match[str]) -> str:
        values = sorted(next(places), key=lambda text: float(text.replace(",", "")))
        low, high = values[0], values[-1]
        return low if low == high else f"{low} to {high}"

    return NUMBER.sub(span, texts[0])


def _first(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def network_note(trials: Iterable[Trial]) -> str:
    """The hosts to which methods of these trials say that they connect, as a clause; empty if there are none."""
    infos = {trial.method: registry().method(trial.method, trial.distribution).thing.info for trial in trials}
    reached = [f"{name} reaches {' and '.join(info.network)}" for name, info in infos.items() if info.network]
    return f"while they fit and predict, {' and '.join(reached)}" if reached else ""


def _of_alike(groups: Sequence[Mapping[str, frozenset[str]]]) -> list[str]:
    """Sentences on trials that are the same, or differ only in settings of parts that never run (by label)."""
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for group in groups:
        told[", ".join(sorted(min(group.values())))][", ".join(group)] = None
    return [
        (
            f"{first} differ only in settings that have no effect here: {settings}"
            if settings
            else f"{first} are the same"
        )
        + (f"; the same holds for {len(more)} other groups of trials" if more else "")
        for settings, (first, *more) in told.items()
    ]


def _of_trial(trial: Trial, method: Method, data: Extent, spent: Mapping[str, Any], steps: float) -> Iterator[str]:
    """Sentences on a trial that fails before its first step, takes few steps, or cuts many queries."""
    limit, needed = method.encoder_training(trial.budget)[1].encoder_tokens, spent.get("first_tokens", 0)
    if limit is not None and needed > limit:
        yield f"fails: about {needed:,.0f} tokens are encoded before the first step, and the budget allows {limit:,}"
    if 0 < steps < FEW_STEPS:
        lower = "lower batch_size or " if trial.config.get("batch_size", 0) > SMALLEST_BATCH else ""
        yield f"about {steps:.0f} steps, which are few: {lower}raise the budget"
    yield from (f"training ends before the first {part}" for part in method.idle_parts(spent))
    longest = trial.config.get("max_query_length") or data.stated_limit
    if "max_query_length" not in trial.config or longest is None or not data.query_percentiles:
        return
    if (share := share_cut(data.query_percentiles, longest)) > MUCH_CUT:
        yield f"about {share:.0%} of the queries are cut at {longest} tokens (max_query_length)"


def _of_counts(method: Method, data: Extent) -> Iterator[str]:
    """Sentences on numbers in a suite that exceed what the dataset has. Defaults may exceed it."""
    fields, unused = type(method.config).model_fields, method.config.unused()
    for name, things in method.counted.items():
        number, most = getattr(method.config, name), sum(getattr(data, thing) for thing in things)
        if name not in unused and number is not None and number > most and number != fields[name].get_default():
            yield f"{name} is {number:,}, but there are {most:,} {' and '.join(things)}: no more are used"
