"""Measured results as rows of a leaderboard.

Seeds of one code that ended alike are averaged (`xmcbench/trial/alike.py`), configurations that share a label get
distinct variants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.notes import is_unbounded
from xmcbench.reporting.rows import Row, Uneven, grouped, share_spent
from xmcbench.reporting.text_table import Value
from xmcbench.reporting.words import alike_texts, chosen_on, few_steps, idle_parts, unanswered, what_is_wrong
from xmcbench.trial.alike import by_result, code_name, redefined, several_codes, superseded
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.facts import why_ended
from xmcbench.trial.provenance import evaluator_digests
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import flatten
from xmcbench.trial.versions import ENGINE_VERSION, SECONDS_VERSION, SELECTION_VERSION, Versions, charge_part, newest

FACTS = (str, int, float)  # types that a column can hold; bool is an int
CONFIG_FACTS = ("batch_size", "negatives", "loss", "dimension")
SECONDS = ("device_seconds", "train_seconds", "training_hours", "query_ms")  # not comparable if trials shared cores
SPENT = ("encoder_tokens", "steps", "epochs", "flops", "device_seconds", "teacher_calls", "teacher_tokens")


def recorded_metrics(records: Iterable[Record]) -> tuple[str, ...]:
    """All metrics that any record has, in the order they were first recorded."""
    return tuple(dict.fromkeys(name for record in records if record.status in SCORED for name in record.metrics))


def newest_versions(records: Iterable[Record]) -> dict[str, Versions]:
    """By method: the newest version of each part of the code that `records` depend on, installed or in a record."""
    harness = {
        "engine": ENGINE_VERSION,
        "selection": SELECTION_VERSION,
        charge_part("device_seconds"): SECONDS_VERSION,
    }
    versions: dict[str, Versions] = defaultdict(lambda: harness)
    for (method, _), alike in grouped(records, lambda one: (one.trial.method, str(one.trial.versions))).items():
        from xmcbench.trial.method import installed_versions  # imports numpy, which tables of papers do without

        trial = alike[0].trial
        here = installed_versions(trial, trial.budget.spending())
        versions[method] = newest(newest(versions[method], trial.versions), here)
    return versions


def measured_rows(
    records: Sequence[Record], versions: Mapping[str, Versions], outdated: Mapping[str, str] | None = None
) -> list[Row]:
    """The rows of comparable records; `versions` are the newest by method, which tell results of older code.

    `outdated` says by key why other records are older than what they are made of.
    """
    groups = by_result(records)
    firsts, changed, outdated = [group[0] for group in groups], superseded(groups), outdated or {}
    older = [
        first.older_than(versions[first.trial.method]) or text or outdated.get(first.key, "")
        for first, text in zip(firsts, changed, strict=True)
    ]
    settings = _variants(firsts, older)
    codes = [
        code_name(first) if text else f"fused {first.ended[:16]}" if first.key in outdated else ""
        for first, text in zip(firsts, changed, strict=True)
    ]
    variants = [", ".join(filter(None, both)) for both in zip(settings, codes, strict=True)]
    old = redefined(records, _installed)
    rows = [
        replace(_row(group, *texts), redefined=old.get(group[0].key, ()))
        for group, *texts in zip(groups, variants, older, strict=True)
    ]
    return _with_uneven(rows)


def _installed(evaluator: str) -> str:
    """The digest of the code of an evaluator as it is installed; empty where it is not."""
    try:
        return evaluator_digests([evaluator]).get(evaluator, "")
    except XMCBenchError:
        return ""


def _row(records: list[Record], variant: str, older: str) -> Row:
    """Average records that differ in their seed alone."""
    first = records[0]
    scored = first.status in SCORED
    imported = isinstance(first.trial.budget, UnknownBudget)
    failure = first.failure
    facts: dict[str, Value] = {"trial": first.key} if imported else _facts(records)
    unlimited = scored and not imported and is_unlimited(records, first.trial.budget)
    names = [name for name in first.metrics if scored and all(name in record.metrics for record in records)]
    values = {name: [record.metrics[name] for record in records] for name in names}
    return Row(
        source="imported" if imported else "measured",
        method=" ".join(first.trial.label.split()),
        variant=variant,
        status=first.status,
        metrics={name: fmean(of_seeds) for name, of_seeds in values.items()},
        intervals=first.intervals if scored and len(records) == 1 else {},
        std={name: stdev(of_seeds) for name, of_seeds in values.items() if len(of_seeds) > 1},
        facts=facts,
        seeds=tuple(record.trial.seed for record in records),
        keys=tuple(record.key for record in records),
        metric_version=first.metric_version,
        lower_is_better=tuple(sorted({name for record in records for name in record.lower_is_better})),
        plugin=first.trial.method,
        tuned=bool(first.chosen),
        held_out=first.trial.selection.queries if first.trial.selection else 0,
        evaluations=len(first.curve),
        single_words=first.trial.config.get("ngrams") == 1 and not first.trial.config.get("characters"),
        older=older,
        codes=several_codes(records),
        idle=idle_parts(first),
        few_steps=few_steps(first),
        alike=alike_texts(first),
        unanswered=unanswered(first),
        wrong=what_is_wrong(first),
        unlimited=unlimited,
        unbounded=unlimited and is_unbounded(facts),
        problem=" ".join(f"{failure.type}: {failure.message}".split()) if failure else "",
    )


def is_unlimited(records: Sequence[Record], budget: Budget) -> bool:
    """Whether finished trials, or the linear solver of one, spent nothing that `budget` limits."""
    limits = budget.spending()
    limited = any(record.spent.get(name) for record in records for name in limits)
    solved = any(record.spent.get("solver_flops") for record in records) and not {"flops", "device_seconds"} & {*limits}
    return solved or not limited


def _with_uneven(rows: Sequence[Row]) -> list[Row]:
    """The measured rows of a table, each with what it had that others had not, or had not itself."""
    held_out, chosen = any(row.held_out for row in rows), any(_chose(row) for row in rows)
    tuned = [row for row in rows if row.tuned]
    cut = any(not row.unlimited for row in tuned)
    sequences = any(_trains(row) and not row.single_words for row in rows)

    def uneven(row: Row) -> Iterator[Uneven]:
        if held_out and not row.held_out:
            yield Uneven.ALL_QUERIES
        if chosen and row.held_out and row.facts.get("steps") and not _chose(row):
            yield Uneven.LAST_WEIGHTS
        if tuned and not row.tuned:
            yield Uneven.NOT_TUNED
        if row.tuned and row.unlimited and cut:
            yield Uneven.WHOLE_SAMPLES
        if sequences and row.single_words:
            yield Uneven.SINGLE_WORDS

    return [replace(row, uneven=tuple(uneven(row)) if _trains(row) else ()) for row in rows]


def _chose(row: Row) -> bool:
    """Whether held-out queries chose one of several checkpoints."""
    return row.held_out > 0 and row.evaluations > 1


def _trains(row: Row) -> bool:
    """Whether it takes steps, or is an outside program, whose operations nobody counts."""
    return bool(row.metrics) and bool(row.facts.get("steps") or "flops" not in row.facts or row.tuned)


def encoder_text(settings: dict[str, Any]) -> str:
    """An encoder's name, with what makes another model of it.

    >>> encoder_text({"name": "static", "words": "wordllama"}), encoder_text({"name": "minilm", "layers": 3})
    ('static, wordllama', 'minilm, 3 layers')
    """
    name = str(settings.get("name") or "").removeprefix("hub:")  # as papers name it
    parts = [name, settings.get("words"), (layers := settings.get("layers")) and f"{layers} layers"]
    return ", ".join(str(part) for part in parts if part)


def _facts(records: list[Record]) -> dict[str, Value]:
    first = records[0]
    config, provenance = first.trial.config, first.provenance
    encoder = config.get("encoder")
    facts: dict[str, Any] = {name: config.get(name) for name in CONFIG_FACTS}
    facts["encoder"] = encoder_text(encoder) if isinstance(encoder, dict) else encoder
    facts |= _spent([record.counted for record in records])
    if first.status in SCORED:
        facts["num_parameters"] = first.parameters
        shares = [share_spent(record) for record in records]
        early = any(why_ended(record.spent) for record in records)
        over, left = max(shares) - 1, fmean(max(0.0, 1 - share) for share in shares)
        facts |= {"overrun": over if over > 0 else None, "unspent": left if early and left > 0 else None}
    if provenance.get("gpu"):
        facts["hardware"] = f"{provenance.get('gpus', 1)} x {provenance['gpu']}"
    elif provenance.get("cpu"):
        facts["hardware"] = f"{provenance.get('cores_usable', 1)} cores of {provenance['cpu']}"
    facts |= {"num_seeds": len(records), "suite": first.suite, "selection_split": chosen_on(first.selection_split)}
    clocks = {record.clock for record in records}
    facts |= {"clock": first.clock} if len(clocks) == 1 else dict.fromkeys(("device_seconds", "training_hours"))
    facts |= {"workers": first.workers, "teacher": first.teacher or None, "trial": first.key}
    facts["shared_label_texts"] = first.labels_with_shared_text or None
    facts |= {"shared_texts": first.test_texts_in_train or None, "simulated_teacher": first.simulated_teacher or None}
    if (side_by_side := max(record.spent.get("side_by_side", 1) for record in records)) > 1:
        facts |= dict.fromkeys(SECONDS) | {"side_by_side": side_by_side}
    return {name: fact for name, fact in facts.items() if isinstance(fact, FACTS)}


def _spent(ledgers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds; of memory and sizes the largest."""
    known = {name: [float(ledger[name]) for ledger in ledgers if name in ledger] for name in SPENT}
    spent = {name: sum(values) / len(values) for name, values in known.items() if values}
    spent = {name: mean for name, mean in spent.items() if mean or not name.startswith("teacher")}
    spent |= _unparsed_answers(ledgers) | _times(ledgers, spent.get("device_seconds"))
    return spent | _largest_sizes(ledgers) | _drawn_labels(ledgers, spent.get("steps"))


def _unparsed_answers(ledgers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of a teacher's answers that say neither yes nor no, if there are any."""
    unparsed = sum(ledger.get("teacher_unparsed", 0) for ledger in ledgers)
    return (
        {"teacher_unparsed": unparsed / sum(ledger.get("teacher_calls", 0) for ledger in ledgers)} if unparsed else {}
    )


def _times(ledgers: Sequence[dict[str, Any]], device_seconds: float | None) -> dict[str, float]:
    """Hours and seconds of training, and milliseconds a query."""
    times = {} if device_seconds is None else {"training_hours": device_seconds / 3600}
    stages = [ledger.get("stage_seconds", {}) for ledger in ledgers]
    if training := [seconds["train"] for seconds in stages if seconds.get("train")]:
        times["train_seconds"] = fmean(training)
    answered = [
        1000 * seconds["predict"] / ledger["predicted_queries"]
        for ledger, seconds in zip(ledgers, stages, strict=True)
        if ledger.get("predicted_queries") and "predict" in seconds
    ]
    return times | ({"query_ms": float(f"{fmean(answered):.2g}")} if answered else {})


def _largest_sizes(ledgers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The largest memory and model of the seeds."""
    names = ("predict_bytes", "model_bytes", "peak_bytes")
    sizes = {name: [float(ledger[name]) for ledger in ledgers if ledger.get(name)] for name in names}
    return {name: max(values) for name, values in sizes.items() if values}


def _drawn_labels(ledgers: Sequence[dict[str, Any]], steps: float | None) -> dict[str, float]:
    """Labels that a step's queries are scored against, and positives of a query."""
    drawn: dict[str, float] = {}
    if steps and (pools := [ledger["pool_labels"] for ledger in ledgers if ledger.get("pool_labels")]):
        drawn["negative_pool"] = round(fmean(pools) / steps)
    counted = [ledger for ledger in ledgers if ledger.get("pool_positives") and ledger.get("queries")]
    if counted:
        drawn["positives"] = round(fmean(ledger["pool_positives"] / ledger["queries"] for ledger in counted), 2)
    return drawn


def _variants(records: Sequence[Record], older: Sequence[str]) -> list[str]:
    """For records that share a label, the settings in which they differ; for others the empty string.

    Results of older code (`older` is not empty) are compared among themselves: older code had other settings.
    """
    sharing = grouped(range(len(records)), lambda at: (records[at].trial.label, bool(older[at])))
    texts = [""] * len(records)
    for places in sharing.values():
        settings = {at: _settings(records[at]) for at in places} if len(places) > 1 else {}
        names = sorted({name for of_record in settings.values() for name in of_record})
        differing = [name for name in names if len({of_record.get(name) for of_record in settings.values()}) > 1]
        for at, of_record in settings.items():
            texts[at] = " ".join(", ".join(f"{name}={of_record.get(name)}" for name in differing).split())
    return texts


def _settings(record: Record) -> dict[str, str]:
    """The settings that distinguish this trial from others of its label, by dotted name."""
    trial = record.trial
    selection = trial.selection.model_dump() if trial.selection else {}
    tree = {**trial.config, "method": trial.method, "distribution": trial.distribution, "selection": selection}
    if isinstance(trial.budget, UnknownBudget) and "predictions" in tree:  # a digest in the settings
        tree["predictions"] = f"{str(tree['predictions'])[:8]} of {record.ended[:10] or 'unknown date'}"
    if record.parts:
        tree["parts"] = "; ".join(part.name for part in record.parts)
    return {name: str(value) for name, value in flatten(tree) if value != {}}
