"""What a record must be like to be accepted, as far as the record alone shows.

A digest is a checksum: whoever edits a record can write a new one. So all that can be compared is compared: the key
with the trial, sums with their parts, costs with the budget, versions with this code. What is left is a statement of
the submitter; `xmcbench/engine/planning/recount.py` counts the steps, tokens and operations again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any

from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.evaluation import check_metrics, find_evaluators
from xmcbench.plugins.registry import OWN, registry
from xmcbench.reporting.costs import CURVE_COSTS
from xmcbench.trial.budget import BUDGETED_STAGES, STAGES, UnknownBudget, allowed
from xmcbench.trial.flatten import flatten
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.trial import SCHEMA_VERSION
from xmcbench.trial.versions import ENGINE_VERSION, SELECTION_VERSION

NEEDED = ("git", "versions", "python", "platform", "cpu", "cores_usable", "memory_bytes", "command")
KEY, COMMIT = r"[0-9a-f]{16}", r"[0-9a-f]{40}"
LONGEST = 200  # characters of a name
ROUNDING = 1e-6  # of sums and of values kept as float32


def problems(record: Record) -> Iterator[str]:
    """Why a record cannot be accepted, as far as the record alone shows."""
    if record.status is not Status.OK:
        yield f"its status is {record.status}, expected ok"
    yield from _identity(record)
    yield from _texts(record)
    yield from _metrics(record)
    if record.trial.track == "zero-shot" and record.simulated_teacher:
        yield "its teacher was simulated from annotations, which the zero-shot track does not allow"
    yield from _gaps(record)
    if isinstance(record.trial.budget, UnknownBudget):
        if record.trial.distribution != "none" or any(record.spent.values()):
            yield "its budget is unknown, which only predictions of another program may have"
        return
    yield from _plugin(record)
    yield from _ledger(record)
    yield from _curve(record)


def outdated(record: Record) -> Iterator[str]:
    """Why a record cannot be submitted any more. A record that was accepted before a new version stays."""
    if not isinstance(record.trial.budget, UnknownBudget) and not record.code_digest:
        yield "its provenance does not name the plugin's code: run it again"


def contradictions(records: Sequence[Record], before: Mapping[str, Record]) -> dict[str, list[str]]:
    """By key: what accepted trials say against each other, and against what was accepted `before`."""
    found: dict[str, list[str]] = defaultdict(list)
    by_key = {record.key: record for record in records}
    truths: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        truths[record.trial.dataset_hash][record.truth_hash] += 1
    for record in records:
        trial = record.trial
        truth = truths[trial.dataset_hash].most_common(1)[0][0]
        if record.truth_hash != truth:
            found[record.key].append(f"its truth is {record.truth_hash[:12]}, others of its data have {truth[:12]}")
        if record.key in before and before[record.key] != record:
            found[record.key].append("it differs from the record of this key that was accepted before")
        for sample in record.chosen.get("samples", ()):
            other = by_key.get(sample["trial"], record)
            if (other.suite, other.trial.method, other.trial.dataset) != (record.suite, trial.method, trial.dataset):
                found[record.key].append(f"its tuning names {other.key}, an accepted trial of {shown(other.suite)}")
    return found


def _identity(record: Record) -> Iterator[str]:
    """A key of another trial, and versions that would make other results those of older code."""
    trial = record.trial
    if record.key_version != SCHEMA_VERSION:
        yield f"it was written by schema version {record.key_version}, expected {SCHEMA_VERSION}: run it again"
    if record.key != trial.key:
        yield f"its key is {record.key}, that of its trial {trial.key}"
    if record.trained_by and not re.fullmatch(KEY, record.trained_by):
        yield f"it was trained by {shown(record.trained_by)}, expected a key"
    newest = {"engine": ENGINE_VERSION, "selection": SELECTION_VERSION}
    try:
        plugin = registry().method(trial.method)
    except UnknownNameError:
        plugin = None
    if plugin is not None and plugin.origin.distribution != trial.distribution:
        yield f"its method {trial.method!r} is of {trial.distribution}, expected {plugin.origin.distribution}"
    if plugin is not None:
        newest["method"] = plugin.thing.info.version
    elif trial.distribution == OWN:
        yield f"its method {shown(trial.method)} is none of xmcbench"
    for part, version in trial.versions.items():
        if version > newest.get(part, version):
            yield f"its version of {part} is {version}, the newest is {newest[part]}"


def _texts(record: Record) -> Iterator[str]:
    """Texts that a terminal or a page would obey, or that nobody can read."""
    trial, provenance = record.trial, record.provenance
    names = {"label": trial.label, "suite": record.suite, "method": trial.method, "dataset": trial.dataset}
    names |= {"distribution": trial.distribution, "version": trial.version}
    others = {"teacher": record.teacher, "selection": record.selection_split}
    others |= {"spent.ended": record.spent["ended"]} if "ended" in record.spent else {}
    others |= {f"provenance.{name}": text for name, text in provenance.items() if isinstance(text, str)}
    lists: dict[str, Iterable[str]] = {"metrics": record.metrics, "parts": trial.versions}
    lists["command"] = provenance.get("command", ())
    lists |= {name: chain(*provenance.get(name, {}).items()) for name in ("versions", "checks")}
    others |= {name: " ".join(words) for name, words in lists.items()}
    for name, text in {**names, **others}.items():
        if not text.strip() and name in names:
            yield f"its {name} is empty"
        elif not text.isprintable() or len(text) > (LONGEST if name in names else 10 * LONGEST):
            yield f"its {name} is {shown(text)}, expected at most {LONGEST} characters that can be printed"
    for place, value in flatten(trial.config):
        if not (place + str(value)).isprintable():
            yield f"its setting {shown(place)} is {shown(str(value))}, expected characters that can be printed"


def _metrics(record: Record) -> Iterator[str]:
    """Metrics that no evaluator has, that contradict each other or lie outside of their intervals."""
    if record.metric_version != METRIC_VERSION:
        yield f"its metrics are of definitions {record.metric_version}, expected {METRIC_VERSION}: rescore it"
    if not record.metrics or not re.fullmatch(r"[0-9a-f]{64}", record.truth_hash):
        yield "it has no metrics, or does not name the truth that they answer to"
    try:
        check_metrics(record.metrics)
        find_evaluators(list(record.metrics))
    except XMCBenchError as problem:
        yield str(problem)
    for name, (low, high) in record.intervals.items():
        if not low - ROUNDING <= record.metrics.get(name, -1.0) <= high + ROUNDING:
            yield f"its interval of {name} is {low:.4f} to {high:.4f}, without its value"


def _plugin(record: Record) -> Iterator[str]:
    """Code that nobody can look at: a plugin outside of every repository, or with changes that no commit holds."""
    if record.trial.distribution == OWN and not record.code_digest:
        return  # accepted before the plugin's code was noted: it is part of the commit
    git = record.provenance.get("plugin", {}).get("git", {})
    if not re.fullmatch(COMMIT, git.get("commit", "")):
        yield "the code of its plugin is in no git repository, expected a commit"
    elif git.get("dirty") is not False:
        yield "the code of its plugin had changes that no commit holds, expected a clean git tree"


def _ledger(record: Record) -> Iterator[str]:
    """Costs that are missing, that contradict each other, or that exceed the budget."""
    spent, limits = record.spent, record.trial.budget.limits()
    needed = ("steps", "encoder_tokens", "flops", "device_seconds", "stage_seconds", "peak_bytes", "largest_step")
    if missing := [name for name in needed if name not in spent]:
        yield f"it does not say what it spent of {', '.join(missing)}"
        return
    for name, limit in limits.items():
        used, most = spent["peak_bytes"] if name == "peak_bytes" else spent.get(name), allowed(name, limit, spent)
        if used is None or not used <= most:
            yield f"it spent {used} {name} of {limit:g}, more than one step past its budget"
    for name, step in spent["largest_step"].items():
        if not step <= spent.get(name, 0):
            yield f"its largest step took {step:g} {name}, all steps together {spent.get(name, 0):g}"
    seconds = spent["stage_seconds"]
    if unknown := sorted(set(seconds) - set(STAGES)):
        yield f"it spent seconds in the stage {shown(unknown[0])}, expected some of {', '.join(STAGES)}"
    sums = {
        "device_seconds": sum(seconds.get(stage, 0.0) for stage in BUDGETED_STAGES),
        "flops": spent.get("encoder_flops", 0) + spent.get("scoring_flops", 0),
        "teacher_tokens": spent.get("teacher_prompt_tokens", 0) + spent.get("teacher_completion_tokens", 0),
    }
    for name, total in sums.items():
        if not abs(spent.get(name, 0) - total) <= ROUNDING * max(1, total):
            yield f"it spent {spent.get(name, 0):g} {name}, its parts come to {total:g}"
    if (spent["encoder_tokens"] > 0) != (spent.get("encoder_flops", 0) > 0):
        yield f"it spent {spent['encoder_tokens']} encoder_tokens in {spent.get('encoder_flops', 0):g} encoder_flops"
    if record.workers < 1 or spent.get("side_by_side", 1) < 1 or spent["peak_bytes"] < 1:
        yield "it ran in no process, or took no memory"
    if not spent.get("predicted_queries", 1) or not seconds.get("predict"):
        yield "it took no time to predict, or predicted nothing"
    if (elapsed := _elapsed(record)) is not None:
        after = seconds.get("predict", 0.0) + seconds.get("check", 0.0)
        if not after <= elapsed + 2:
            yield f"it predicted for {after:.0f} seconds, {elapsed:.0f} passed between its start and its end"


def _elapsed(record: Record) -> float | None:
    """Seconds from start to end; None where one of them is no time."""
    try:
        return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
    except (ValueError, TypeError):
        return None


def _curve(record: Record) -> Iterator[str]:
    """A curve that falls back, or that spent more than the trial."""
    names = [name for name in CURVE_COSTS if any(name in point for point in record.curve)]
    for name in names:
        costs = [point.get(name, -1.0) for point in record.curve]
        if costs[0] < 0 or any(not after >= before for before, after in pairwise(costs)):
            yield f"its curve goes back in {name}"
        elif not costs[-1] <= record.spent.get(name, 0) * (1 + ROUNDING):
            yield f"its curve spent {costs[-1]:g} {name}, the trial {record.spent.get(name, 0):g}"
    for point in record.curve:
        if wrong := [name for name, value in point.items() if "@" in name and not 0 <= value <= 1]:
            yield f"its curve has {wrong[0]} of {point[wrong[0]]:g}, expected a fraction"


def _gaps(record: Record) -> Iterator[str]:
    """Missing provenance."""
    provenance = record.provenance
    for name in NEEDED:
        if not provenance.get(name):
            yield f"its provenance does not say {name}"
    git: dict[str, Any] = provenance.get("git") or {}
    if git and not re.fullmatch(COMMIT, git.get("commit", "")):
        yield f"its commit is {git.get('commit')!r}, expected 40 hexadecimal digits"
    if git.get("dirty") is not False:
        yield "the code it ran with had changes that no commit holds, expected a clean git tree"
    elapsed = _elapsed(record)
    if elapsed is None:
        yield "it does not say when it began and ended"
    elif elapsed < 0 or record.ended[:10] > f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}":
        yield f"it began at {record.started} and ended at {record.ended}"
