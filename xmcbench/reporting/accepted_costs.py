"""What a submission says of its costs, as far as the record alone shows: sums and parts, budget, curve and clocks.

Seconds and memory are statements of the submitter. Those that no trial can have are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from xmcbench.errors import XMCBenchError, shown
from xmcbench.evaluation import find_evaluators
from xmcbench.plugins.registry import OWN
from xmcbench.reporting.costs import CURVE_COSTS
from xmcbench.trial.budget import BUDGETED_STAGES, STAGES, allowed
from xmcbench.trial.meter import FEW_SECONDS, IMPORT_SECONDS, SHARE
from xmcbench.trial.record import Record
from xmcbench.trial.record_fields import walk
from xmcbench.trial.run import why_flat
from xmcbench.trial.trial import Selection

AFTER_FIT = ("predict", "check", "score")  # stages
ROUNDING = 1e-6  # of sums and of values kept as float32
LEAST_BYTES = 10_000_000  # Python with numpy takes more
LEAST_SECONDS = 1e-8  # to predict a query
MOST_PROCESSES = 100_000
CLOCKS = 2.0  # seconds by which two clocks may differ
MOST_FLOPS = {False: 1e12, True: 1e16}  # a second of a core, and with a GPU: more than any has
CLOSE = 0.05  # of the budget: between a curve's fraction and what it spent, as clocks go on
SHARED = 2.0  # times the memory of a machine: pages that several processes share are counted in each


def ledger_problems(record: Record) -> Iterator[str]:
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
    yield from _work(record)
    yield from _memory(record)
    yield from _seconds(record)


def _work(record: Record) -> Iterator[str]:
    """Steps, tokens, queries and teachers of which one is impossible without the other."""
    spent, calls = record.spent, record.spent.get("teacher_calls", 0)
    if (spent["encoder_tokens"] > 0) != (spent.get("encoder_flops", 0) > 0):
        yield f"it spent {spent['encoder_tokens']} encoder_tokens in {spent.get('encoder_flops', 0):g} encoder_flops"
    if spent["steps"] and spent["encoder_tokens"] and not record.num_parameters:
        yield f"it took {spent['steps']} steps over {spent['encoder_tokens']} tokens, and trained no parameters"
    queries = spent.get("queries", 0)
    if (spent.get("epochs", 0) > 0) != (queries > 0):
        yield f"it spent {spent.get('epochs', 0):g} epochs on {queries} queries"
    if spent.get("pool_positives", 0) > max(1, queries) * max(1, spent.get("pool_labels", 0)):
        yield f"it had {spent['pool_positives']} positives among {spent.get('pool_labels', 0)} labels"
    if spent.get("refused_pass", 0) > 1 or spent.get("teacher_cached", 0) > calls:
        yield "it refused more than one pass, or more answers were cached than given"
    if (bool(record.teacher) or record.simulated_teacher) != (calls > 0):
        yield f"its teacher is {shown(record.teacher)}, which was asked {calls} times"
    if calls and not any(name == "teacher" for name, _ in walk(record.trial.config)):
        yield f"it asked a teacher {calls} times, and its method has none"


def _memory(record: Record) -> Iterator[str]:
    """Memory that no process has, or no process of this machine."""
    spent, provenance = record.spent, record.provenance
    workers, side_by_side = record.workers, spent.get("side_by_side", 1)
    peak, own = spent["peak_bytes"], spent.get("worker_bytes", [])
    if not (1 <= workers <= MOST_PROCESSES and 1 <= side_by_side <= MOST_PROCESSES) or peak < LEAST_BYTES:
        yield "it ran in no process or in too many, or took no memory"
    if len(own) not in (0, workers) or max(own, default=0) > peak:
        yield f"it names the memory of {len(own)} workers of {workers}, at most {max(own, default=0)} bytes of {peak}"
    most = SHARED * provenance.get("memory_bytes", 0)
    if max(peak, spent.get("predict_bytes", 0)) > most > 0 and workers == 1:
        yield f"it took {peak:,} bytes, its machine has {provenance['memory_bytes']:,}"
    on_gpu = bool(provenance.get("gpu")) and bool(provenance.get("cuda"))
    if not on_gpu and (provenance.get("gpu") or spent.get("peak_device_bytes")):
        yield "it names a GPU, or memory of one, without CUDA"
    if max(peak, spent.get("peak_device_bytes", 0)) * workers < record.num_parameters:
        yield f"its {record.num_parameters:,} parameters do not fit into the {peak:,} bytes that it took"
    if "model_bytes" in spent and spent["model_bytes"] < record.num_parameters:
        yield f"its model of {record.num_parameters:,} parameters has {spent['model_bytes']:,} bytes"


def _seconds(record: Record) -> Iterator[str]:
    """Seconds that did not pass, or that processors of this machine cannot have."""
    spent, seconds = record.spent, record.spent["stage_seconds"]
    queries, predicted = spent.get("predicted_queries", 1), seconds.get("predict", 0.0)
    if not queries or not predicted >= LEAST_SECONDS * queries:
        yield "it took no time to predict, or predicted nothing"
    if "wall_seconds" in spent:
        yield "it was ended from outside"
    after = sum(seconds.get(stage, 0.0) for stage in AFTER_FIT)
    passed = elapsed(record)
    if passed is not None and not after <= passed + CLOCKS:
        yield f"it predicted for {after:.0f} seconds, {passed:.0f} passed between its start and its end"
    cores = record.provenance.get("cores") or MOST_PROCESSES
    processors = record.workers * (record.provenance.get("gpus", 1) if record.provenance.get("gpu") else cores)
    if not spent["flops"] <= MOST_FLOPS["gpu" in record.provenance] * processors * (spent["device_seconds"] + CLOCKS):
        yield f"it took {spent['device_seconds']:g} seconds for {spent['flops']:g} operations, which no processor can"
    if "fit_seconds" not in spent:
        return  # a record from before they were measured
    fit, wait = spent["fit_seconds"], spent.get("fit_wait_seconds", 0.0)
    if passed is not None and not max(fit + after, wait) <= passed + CLOCKS:
        yield f"it fitted for {fit:.0f} seconds, {passed:.0f} passed between its start and its end"
    stages = sum(seconds.values()) - after
    if max(0.0, fit - wait) - stages > SHARE * max(0.0, fit - wait) + FEW_SECONDS:
        yield f"it fitted for {fit:.1f} seconds, its stages took {stages:.1f}"
    for name, most in {"fit_cpu_seconds": fit, "predict_cpu_seconds": predicted}.items():
        if not spent.get(name, 0.0) <= cores * (most + CLOCKS):
            yield f"its {name} are {spent[name]:g}, {cores} cores have {cores * most:g} in that time"
    if not spent.get("fit_children_cpu_seconds", 0.0) <= spent.get("fit_cpu_seconds", 0.0) + CLOCKS:
        yield "its child processes took more seconds of processors than all of it"
    if not spent.get("import_cpu_seconds", 0.0) <= IMPORT_SECONDS:
        yield f"its imports took {spent['import_cpu_seconds']:g} seconds, expected at most {IMPORT_SECONDS:g}"


def elapsed(record: Record) -> float | None:
    """Seconds from start to end; None where one of them is no time."""
    try:
        return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
    except (ValueError, TypeError):
        return None


def curve_problems(record: Record) -> Iterator[str]:
    """A curve that falls back, that spent more than the trial, or whose points nobody measured."""
    names = [name for name in ("fraction", *CURVE_COSTS) if any(name in point for point in record.curve)]
    for name in names:
        costs = [point.get(name, -1.0) for point in record.curve]
        if costs[0] < 0 or any(not after >= before for before, after in pairwise(costs)):
            yield f"its curve goes back in {name}"
        elif name != "fraction" and not costs[-1] <= record.spent.get(name, 0) * (1 + ROUNDING):
            yield f"its curve spent {costs[-1]:g} {name}, the trial {record.spent.get(name, 0):g}"
    metrics = {name for point in record.curve for name in point if "@" in name}
    others = {name for point in record.curve for name in point} - metrics - {"fraction", *CURVE_COSTS}
    try:
        find_evaluators(sorted(metrics))
    except XMCBenchError as problem:
        yield f"its curve: {problem}"
    if others:
        yield f"its curve has {shown(min(others))}, expected metrics and costs"
    for point in record.curve:
        if wrong := [name for name, value in point.items() if "@" in name and not 0 <= value <= 1]:
            yield f"its curve has {wrong[0]} of {point[wrong[0]]:g}, expected a fraction"
        if not metrics <= point.keys() or not {*CURVE_COSTS} & point.keys() or point.get("fraction", 0.0) > 2:
            yield "its curve has a point without metrics or costs, or far past the budget"
            break
    if metrics and record.selection_split == "none":
        yield "its curve has metrics, and no queries were held out for them"
    if selection := record.trial.selection:
        yield from _evaluations(record, selection)
    if "ended" in record.spent and _plain(record) and not _flat(record):
        yield f"it ended early: {shown(record.spent['ended'])}, of which curve and settings show nothing"


def _plain(record: Record) -> bool:
    """Whether the harness's training alone spent the budget: plugins may differ, and second stages share it."""
    return record.trial.distribution == OWN and "first" not in record.trial.config


def _flat(record: Record) -> bool:
    """Whether training ended as the metric had not risen for as many evaluations as the selection's patience."""
    held_out = record.trial.selection
    if held_out is None or not all(held_out.metric in point for point in record.curve):
        return False
    return bool(record.spent["ended"]) and record.spent["ended"] == why_flat(
        record.curve, held_out.metric, held_out.patience
    )


def _evaluations(record: Record, selection: Selection) -> Iterator[str]:
    """A curve that is not of the evaluations that its trial asks for, and an end of training that it does not show."""
    spent, curve, limits = record.spent, record.curve, record.trial.budget.spending()
    steps = spent.get("steps", 0)
    if len(curve) > selection.evaluations + 1 or (curve and not steps):
        yield f"its curve has {len(curve)} points of {selection.evaluations} evaluations in {steps:,} steps"
    if curve and selection.metric not in curve[0]:
        yield f"its curve does not have {selection.metric}, which chooses the checkpoint"
        return
    if not (_plain(record) and spent.get("encoder_tokens")):
        return
    least = min(selection.evaluations, steps) - 1
    if len(curve) < least and not (spent.get("ended") or spent.get("refused_pass")):
        yield f"its curve has {len(curve)} points of {selection.evaluations} evaluations"
    most = max(spent.get(name, 0) / limit for name, limit in limits.items())
    for point in curve:
        share = max((point[name] / limit for name, limit in limits.items() if name in point), default=0.0)
        known = limits.keys() <= point.keys()
        if not share - CLOSE <= point.get("fraction", -1.0) <= (share if known else most) + CLOSE:
            yield f"its curve has spent {share:.0%} of the budget where it says {point.get('fraction', 0.0):.0%}"
            return
