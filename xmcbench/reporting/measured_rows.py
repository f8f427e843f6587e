"""Records to rows: seeds that ended alike are averaged, configurations that share a label get distinct variants.

A row is compared with the published row of its setting, and with the best row of its group: every trial stores its
metrics on the same resamples of the test queries, so neither predictions nor the dataset are needed. The rule is that
of `xmcbench/evaluation/significance.py`. B resamples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from xmcbench.reporting.costs import share_spent
from xmcbench.reporting.notes import few_steps, idle_parts, what_is_wrong
from xmcbench.reporting.numbers import Value, folded
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import flatten
from xmcbench.trial.versions import ENGINE_VERSION, SELECTION_VERSION, Versions, newest

if TYPE_CHECKING:
    import numpy as np

    from xmcbench.evaluation.significance import Sample

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
        seeds[f"{record.trial.but_seed} {record.status} {record.metric_version}"].append(record)
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
        tuned=bool(first.chosen),
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


# Two settings are the same where both rows state these facts and agree, and no other stated fact differs.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DIFFER = ("negatives", "loss", "dimension")


def with_difference(row: Row, record: Record, published: Iterable[PublishedRow]) -> Row:
    """The measured row with its difference from the published row of the same method and setting, if there is one."""
    match = _same_setting(row, record, list(published))
    if match is None:
        return row
    against = {name: row.metrics[name] - value for name, value in match.metrics.items() if name in row.metrics}
    return replace(row, against=against, against_source=match.source)


def _same_setting(row: Row, record: Record, published: Sequence[PublishedRow]) -> PublishedRow | None:
    """The published row that agrees in most facts; of several the one with the shortest variant."""
    trial = record.trial
    near = [other for other in published if other.dataset == trial.dataset and other.track == trial.track]
    near = [other for other in near if not other.protocol and other.metrics]
    names = {folded(other.method) for other in near}
    name = folded(trial.label) if folded(trial.label) in names else folded(trial.method)
    agreeing = [
        (agreements, other)
        for other in near
        if folded(other.method) == name and (agreements := _agreements(row, other))
    ]
    return min(agreeing, key=lambda pair: (-pair[0], len(pair[1].variant)))[1] if agreeing else None


def _agreements(row: Row, other: PublishedRow) -> int:
    """The number of facts on which both rows agree; 0 where the settings are not the same."""
    count = 0
    for name in (*MUST_AGREE, *MAY_NOT_DIFFER):
        ours, theirs = row.facts.get(name), getattr(other, name)
        if ours is None or theirs is None:
            if name in MUST_AGREE:
                return 0
        elif _alike(name, ours, theirs):
            count += 1
        else:
            return 0
    return count


def _alike(name: str, ours: Value, theirs: Value) -> bool:
    first, second = folded(str(ours)), folded(str(theirs))
    if name == "encoder":  # distilbert-base, DistilBERT and distilbert-base-uncased
        return first.startswith(second) or second.startswith(first)
    return first.removesuffix("labels") == second.removesuffix("labels")


# (key of a trial, names of metrics) -> the stored replicates [B] of each metric; empty where none are stored
Resampled = Callable[[str, Sequence[str]], Mapping[str, "np.ndarray"]]


def with_uncertainty(
    rows: Sequence[Row], metrics: Sequence[str], records: Mapping[str, Record], resampled: Resampled
) -> list[Row]:
    """The `rows` of a group, with intervals of means over seeds and the `metrics` in which each ties with the best.

    Rows without rank, and rows of which a trial has no replicates, are not compared. Nor are rows with fewer replicates
    than others: an installed xmcbench has those of accepted trials in fewer numbers. `records` are by key.
    """
    ranked = [row for row in rows if row.rank is not None]
    if len(ranked) < 2 and not any(row.std for row in ranked):
        return list(rows)
    from xmcbench.evaluation.significance import estimate, samples, tied_with_best

    of_row: dict[tuple[str, ...], Mapping[str, Sample]] = {
        row.keys: samples([records[key] for key in row.keys], [resampled(key, metrics) for key in row.keys])
        for row in ranked
    }
    tied: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        found = {row.keys: of_row[row.keys].get(metric) for row in ranked if metric in row.metrics}
        sizes = {keys: sample.replicates_SB.shape[1] for keys, sample in found.items() if sample}
        compared = [keys for keys, size in sizes.items() if size == max(sizes.values())]
        if len(compared) > 1:
            marks = tied_with_best([of_row[keys][metric] for keys in compared])
            for keys, same in zip(compared, marks, strict=True):
                tied[keys] |= {metric} if same else set()

    def known(row: Row) -> Row:
        if row.rank is None:
            return row
        own = of_row[row.keys].items() if row.std else ()
        intervals = {metric: estimate(sample).interval for metric, sample in own if metric in row.metrics}
        return replace(row, tied=frozenset(tied[row.keys]), intervals=row.intervals | intervals)

    return [known(row) for row in rows]
