"""Records to rows: seeds that ended alike are averaged, configurations that share a label get distinct variants."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from xmcbench.reporting.costs import share_spent
from xmcbench.reporting.numbers import Value
from xmcbench.reporting.remarks import few_steps, idle_parts, what_is_wrong
from xmcbench.reporting.rows import Row
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.flatten import flatten
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.versions import ENGINE_VERSION, SELECTION_VERSION, Versions, newest

FACTS = (str, int, float)  # types that a column can hold; bool is an int
CONFIG_FACTS = ("batch_size", "negatives", "loss", "dimension")
SECONDS = ("device_seconds", "train_seconds", "training_hours", "query_ms")  # not comparable if trials shared cores
SPENT = ("encoder_tokens", "steps", "epochs", "flops", "device_seconds", "teacher_calls", "teacher_tokens")


def recorded_metrics(records: Iterable[Record]) -> tuple[str, ...]:
    """All metrics that any record has, in the order they were first recorded."""
    return tuple(dict.fromkeys(name for record in records if record.status in SCORED for name in record.metrics))


def newest_versions(records: Iterable[Record]) -> dict[str, Versions]:
    """By method: the newest version of each part of the code that `records` depend on."""
    versions: dict[str, Versions] = defaultdict(lambda: {"engine": ENGINE_VERSION, "selection": SELECTION_VERSION})
    for record in records:
        versions[record.trial.method] = newest(versions[record.trial.method], record.trial.versions)
    return versions


def measured_rows(records: Sequence[Record], versions: Mapping[str, Versions]) -> list[tuple[Record, Row]]:
    """The rows of comparable records, each with the record of its first seed.

    `versions` are the newest by method, which tell results of older code.
    """
    seeds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        settings = record.trial.model_dump_json(exclude={"seed", "version"})
        seeds[f"{settings} {record.status} {record.metric_version}"].append(record)
    groups = [sorted(group, key=lambda record: record.trial.seed) for group in seeds.values()]
    older = [group[0].older_than(versions[group[0].trial.method]) for group in groups]
    variants = _variants([group[0] for group in groups], older)
    return [(group[0], _row(group, *texts)) for group, *texts in zip(groups, variants, older, strict=True)]


def _row(records: list[Record], variant: str, older: str) -> Row:
    """Average records that differ in their seed alone."""
    first = records[0]
    scored = first.status in SCORED
    imported = isinstance(first.trial.budget, UnknownBudget)
    single = scored and len(records) == 1
    failure = first.failure
    values: dict[str, list[float]] = {}
    if scored and len(records) > 1:
        names = [name for name in first.metrics if all(name in record.metrics for record in records)]
        values = {name: [record.metrics[name] for record in records] for name in names}
    return Row(
        source="imported" if imported else "measured",
        method=" ".join(first.trial.label.split()),
        variant=variant,
        status=first.status,
        metrics={name: fmean(own) for name, own in values.items()} or (first.metrics if single else {}),
        intervals=first.intervals if single else {},
        std={name: stdev(own) for name, own in values.items()},
        facts={"trial": first.key} if imported else _facts(records),
        seeds=tuple(record.trial.seed for record in records),
        keys=tuple(record.key for record in records),
        metric_version=first.metric_version,
        plugin=first.trial.method,
        older=older,
        idle=idle_parts(first),
        few_steps=few_steps(first),
        wrong=what_is_wrong(first),
        unlimited=scored and not imported and not _limited(records),
        problem=" ".join(f"{failure.type}: {failure.message}".split()) if failure else "",
    )


def encoder_text(settings: dict[str, Any]) -> str:
    """An encoder's name, with what makes another model of it.

    >>> encoder_text({"name": "static", "words": "wordllama"}), encoder_text({"name": "minilm", "layers": 3})
    ('static, wordllama', 'minilm, 3 layers')
    """
    parts = [settings.get("name"), settings.get("words"), (layers := settings.get("layers")) and f"{layers} layers"]
    return ", ".join(part for part in parts if part)


def _limited(records: list[Record]) -> bool:
    """Whether a trial spent some of what its budget limits."""
    return any(record.spent.get(name) for record in records for name in record.trial.budget.spending())


def _facts(records: list[Record]) -> dict[str, Value]:
    first = records[0]
    config, provenance = first.trial.config, first.provenance
    encoder = config.get("encoder")
    facts: dict[str, Any] = {name: config.get(name) for name in CONFIG_FACTS}
    facts["encoder"] = encoder_text(encoder) if isinstance(encoder, dict) else encoder
    facts |= _spent([record.spent for record in records])
    if first.status in SCORED:
        facts["num_parameters"] = first.num_parameters
        facts |= {"overrun": _overrun(records), "unspent": _unspent(records)}
    if provenance.get("gpu"):
        facts["hardware"] = f"{provenance.get('gpus', 1)} x {provenance['gpu']}"
    elif provenance.get("cpu"):
        facts["hardware"] = f"{provenance.get('cores_usable', 1)} cores of {provenance['cpu']}"
    facts |= {"num_seeds": len(records), "suite": first.suite, "selection_split": first.selection_split}
    facts |= {"workers": first.workers, "teacher": first.teacher or None, "trial": first.key}
    facts["shared_texts"] = first.test_texts_in_train or None
    facts["simulated_teacher"] = first.simulated_teacher or None
    if (side_by_side := max(record.spent.get("side_by_side", 1) for record in records)) > 1:
        facts |= dict.fromkeys(SECONDS) | {"side_by_side": side_by_side}
    return {name: fact for name, fact in facts.items() if isinstance(fact, FACTS)}


def _overrun(records: list[Record]) -> str | None:
    """By how much a trial exceeded its budget at most, in per cent of the limit; None where none did."""
    most = max(share_spent(record) for record in records) - 1
    return f"{100 * most:.1f} %" if most > 0 else None


def _unspent(records: list[Record]) -> str | None:
    """The mean share of the budget that was left where a trial ended early; None where none did."""
    early = [record.spent.get("ended") or record.spent.get("refused_pass") for record in records]
    left = fmean(max(0.0, 1 - share_spent(record)) for record in records)
    return f"{100 * left:.1f} %" if any(early) and left > 0 else None


def _spent(ledgers: list[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds; of peak memory the largest."""
    spent: dict[str, float] = {}
    for name in SPENT:
        values = [float(ledger[name]) for ledger in ledgers if ledger.get(name) is not None]
        if values and (any(values) or not name.startswith("teacher")):
            spent[name] = sum(values) / len(values)
    if "device_seconds" in spent:
        spent["training_hours"] = spent["device_seconds"] / 3600
    if training := [
        ledger["stage_seconds"]["train"] for ledger in ledgers if ledger.get("stage_seconds", {}).get("train")
    ]:
        spent["train_seconds"] = fmean(training)
    if answering := [
        1000 * ledger["stage_seconds"]["predict"] / ledger["predicted_queries"]
        for ledger in ledgers
        if ledger.get("predicted_queries") and "predict" in ledger.get("stage_seconds", {})
    ]:
        spent["query_ms"] = float(f"{fmean(answering):.2g}")
    for name in ("predict_bytes", "model_bytes"):
        if sizes := [float(ledger[name]) for ledger in ledgers if ledger.get(name)]:
            spent[name] = max(sizes)
    if peaks := [float(ledger["peak_bytes"]) for ledger in ledgers if ledger.get("peak_bytes")]:
        spent["peak_bytes"] = max(peaks)
    if spent.get("steps") and (pools := [ledger["pool_labels"] for ledger in ledgers if ledger.get("pool_labels")]):
        spent["negative_pool"] = round(fmean(pools) / spent["steps"])
    drawn = [ledger for ledger in ledgers if ledger.get("pool_positives") and ledger.get("queries")]
    if shares := [ledger["pool_positives"] / ledger["queries"] for ledger in drawn]:
        spent["positives"] = round(fmean(shares), 2)
    return spent


def _variants(records: Sequence[Record], older: Sequence[str]) -> list[str]:
    """For records that share a label, the settings in which they differ; for others the empty string.

    Results of older code (`older` is not empty) are compared among themselves: older code had other settings.
    """
    sharing: dict[tuple[str, bool], list[dict[str, str]]] = defaultdict(list)
    names = [(record.trial.label, bool(reason)) for record, reason in zip(records, older, strict=True)]
    counts = Counter(names)
    settings = [_settings(record) if counts[name] > 1 else {} for record, name in zip(records, names, strict=True)]
    for name, own in zip(names, settings, strict=True):
        sharing[name].append(own)
    differing = {name: _differing(rows) for name, rows in sharing.items()}
    return [
        " ".join(", ".join(f"{setting}={own.get(setting)}" for setting in differing[name]).split())
        for name, own in zip(names, settings, strict=True)
    ]


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The settings that do not have the same value everywhere."""
    names = sorted({name for own in settings for name in own}) if len(settings) > 1 else []
    return [name for name in names if len({own.get(name) for own in settings}) > 1]


def _settings(record: Record) -> dict[str, str]:
    """The settings that distinguish this trial from others of its label, by dotted name."""
    trial = record.trial
    tree = {
        **trial.config,
        **trial.model_dump(include={"method", "distribution"}),
        "selection": trial.selection.model_dump() if trial.selection else {},
    }
    return {name: str(value) for name, value in flatten(tree) if value != {}}
