"""Results to rows of a leaderboard, measured ones and those of papers.

Measured: seeds of one code that ended alike are averaged (`xmcbench/trial/alike.py`), configurations that share a
label get distinct variants. A row is
compared with the published row of its setting, and with the best row of its group: every trial stores its metrics on
the same resamples of the test queries, so neither predictions nor the dataset are needed. The rule is that of
`xmcbench/evaluation/significance.py`. B resamples.

Published: papers repeat one another's rows, and one result is one row. Rows of one method are the same result where
most metrics that both print agree. Of each method and kind (encoder, classifier, both) one result is shown, that of the
method's own paper where there is one; ablations, costs and further results of the kind are folded into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.claims import Claim
from xmcbench.reporting.notes import alike_texts, few_steps, idle_parts, unanswered, what_is_wrong
from xmcbench.reporting.published import COSTS, KINDS, PublishedRow
from xmcbench.reporting.rows import Row, grouped, share_spent
from xmcbench.reporting.text_table import Value, folded
from xmcbench.reporting.words import chosen_on
from xmcbench.suite.tables import COLUMNS
from xmcbench.trial.alike import by_result, code_name, redefined, several_codes, superseded
from xmcbench.trial.budget import Budget, UnknownBudget
from xmcbench.trial.facts import why_ended
from xmcbench.trial.provenance import evaluator_digests
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.trial import flatten
from xmcbench.trial.versions import ENGINE_VERSION, SECONDS_VERSION, SELECTION_VERSION, Versions, charge_part, newest

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
    own = {"engine": ENGINE_VERSION, "selection": SELECTION_VERSION, charge_part("device_seconds"): SECONDS_VERSION}
    versions: dict[str, Versions] = defaultdict(lambda: own)
    for record in records:
        versions[record.trial.method] = newest(versions[record.trial.method], record.trial.versions)
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
        own.older_than(versions[own.trial.method]) or text or outdated.get(own.key, "")
        for own, text in zip(firsts, changed, strict=True)
    ]
    settings = _variants(firsts, older)
    codes = [
        code_name(own) if text else f"fused {own.ended[:16]}" if own.key in outdated else ""
        for own, text in zip(firsts, changed, strict=True)
    ]
    variants = [", ".join(filter(None, both)) for both in zip(settings, codes, strict=True)]
    old = redefined(records, _installed)
    return [
        replace(_row(group, *texts), redefined=old.get(group[0].key, ()))
        for group, *texts in zip(groups, variants, older, strict=True)
    ]


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
    names = [name for name in first.metrics if scored and all(name in record.metrics for record in records)]
    values = {name: [record.metrics[name] for record in records] for name in names}
    return Row(
        source="imported" if imported else "measured",
        method=" ".join(first.trial.label.split()),
        variant=variant,
        status=first.status,
        metrics={name: fmean(own) for name, own in values.items()},
        intervals=first.intervals if scored and len(records) == 1 else {},
        std={name: stdev(own) for name, own in values.items() if len(own) > 1},
        facts={"trial": first.key} if imported else _facts(records),
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
        unlimited=scored and not imported and is_unlimited(records, first.trial.budget),
        problem=" ".join(f"{failure.type}: {failure.message}".split()) if failure else "",
    )


def is_unlimited(records: Sequence[Record], budget: Budget) -> bool:
    """Whether finished trials, or the linear solver of one, spent nothing that `budget` limits."""
    limits = budget.spending()
    limited = any(record.spent.get(name) for record in records for name in limits)
    solved = any(record.spent.get("solver_flops") for record in records) and not {"flops", "device_seconds"} & {*limits}
    return solved or not limited


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
        names = sorted({name for own in settings.values() for name in own})
        differing = [name for name in names if len({own.get(name) for own in settings.values()}) > 1]
        for at, own in settings.items():
            texts[at] = " ".join(", ".join(f"{name}={own.get(name)}" for name in differing).split())
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


# Two settings are the same where both rows state these facts and agree, and no other stated fact differs.
MUST_AGREE = ("encoder", "batch_size")
MAY_NOT_DIFFER = ("negatives", "loss", "dimension")


def with_difference(row: Row, near: Iterable[PublishedRow]) -> Row:
    """The measured row with its difference from the published row of the same method and setting, if there is one.

    `near` are the rows of its dataset and track. Of several it is the one that agrees in most facts, then the one with
    the shortest variant.
    """
    by_method = grouped(near, lambda other: folded(other.method))
    same = by_method.get(folded(row.method)) or by_method.get(folded(row.plugin), [])
    match = min(same, key=lambda other: (-_agreements(row, other), len(other.variant)), default=None)
    if match is None or not _agreements(row, match):
        return row
    against = {name: row.metrics[name] - value for name, value in match.metrics.items() if name in row.metrics}
    return replace(row, against=against, against_source=match.source)


def _agreements(row: Row, other: PublishedRow) -> int:
    """The number of facts on which both rows agree; 0 where the settings are not the same."""
    facts = {name: (row.facts.get(name), getattr(other, name)) for name in (*MUST_AGREE, *MAY_NOT_DIFFER)}
    stated = {name: [folded(str(fact)) for fact in pair] for name, pair in facts.items() if None not in pair}
    if not {*MUST_AGREE} <= stated.keys():
        return 0
    short, long = sorted(stated.pop("encoder"), key=len)  # distilbert-base, DistilBERT and distilbert-base-uncased
    alike = [len({fact.removesuffix("labels") for fact in pair}) == 1 for pair in stated.values()]
    return 1 + len(alike) if long.startswith(short) and all(alike) else 0


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
    tested: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        known = {keys: own[metric] for keys, own in of_row.items() if metric in own}
        most = max((sample.replicates_SB.shape[1] for sample in known.values()), default=0)
        compared = [keys for keys, sample in known.items() if sample.replicates_SB.shape[1] == most]
        if len(compared) > 1:
            lower = any(record.is_lower(metric) for record in records.values())
            marks = tied_with_best([known[keys] for keys in compared], lower_is_better=lower)
            for keys, same in zip(compared, marks, strict=True):
                tied[keys] |= {metric} if same else set()
                tested[keys].add(metric)
    found = []
    for row in rows:
        own = of_row.get(row.keys, {}) if row.std else {}
        intervals = {metric: estimate(sample).interval for metric, sample in own.items()}
        row = replace(row, tied=frozenset(tied[row.keys]), tested=frozenset(tested[row.keys]))
        found.append(replace(row, intervals=row.intervals | intervals))
    return found


ROUNDING = 1.01e-4  # two values, fractions, that may be one value rounded twice
COMPARABLE = ("", *KINDS, "encoder + auxiliary", "x3")  # variants whose values should agree


def printed_row(row: PublishedRow, claims: Iterable[Claim] = ()) -> Row:
    """A published row on its own, with those of the `claims` that say that it is better than another row."""
    facts: dict[str, Value | None] = {name: getattr(row, name, None) for name in COLUMNS if name != "settings"}
    facts["settings"] = ", ".join(f"{name} {value}" for name, value in row.settings.items())
    facts["misprints"] = "; ".join(f"{name}: {text}" for name, text in row.misprint.items())
    facts["paper"] = row.source
    return Row(
        source="published",
        method=row.method,
        variant=row.variant,
        kind=row.predictor,
        metrics=row.metrics,
        printed=row.printed | row.printed_costs,
        misprints=row.misprint,
        facts={name: fact for name, fact in facts.items() if fact not in (None, "")},
        papers=(row.paper,),
        url=row.url,
        citation=row.citation,
        claims=tuple(claim for claim in claims if claim.paper.is_about(row)),
    )


def merged_rows(published: Iterable[PublishedRow], claims: Sequence[Claim]) -> list[Row]:
    """One row for each method and kind, with the other rows of the method folded into it. Nothing is lost."""
    by_method = grouped(published, lambda row: row.method).values()
    return [shown for rows in by_method for shown in _of_method(rows, claims)]


Result = list[PublishedRow]  # the rows that print one result


def _of_method(rows: Sequence[PublishedRow], claims: Sequence[Claim]) -> list[Row]:
    merged = _merged(rows)
    shown = grouped((result for result in merged if any(row.role == "main" for row in result)), _kind)
    folded = grouped((result for result in merged if all(row.role != "main" for row in result)), _kind)
    if not shown:  # a table that only has ablations of the method
        kind = next(iter(folded))
        shown[kind] = [folded[kind].pop(0)]
    for results in shown.values():
        results.sort(key=_preference)
    for kind, others in folded.items():
        shown[kind if kind in shown else next(iter(shown))] += others
    return [_shown(results, kind, claims) for kind, results in shown.items()]


def _merged(rows: Sequence[PublishedRow]) -> list[Result]:
    """The rows of a method by result. Rows of unknown kind come last, so that they join a result of a known kind."""
    results: list[list[int]] = []  # by the places of the rows
    for at in sorted(range(len(rows)), key=lambda at: (not rows[at].predictor, rows[at].predictor == "classifier")):
        same = (result for result in results if _same_result(rows[at], [rows[other] for other in result]))
        if (result := next(same, None)) is not None:
            result.append(at)
        else:
            results.append([at])
    return [[rows[at] for at in result] for result in sorted(map(sorted, results))]


def _same_result(row: PublishedRow, result: Result) -> bool:
    """Whether the row prints the result: kinds are compatible, and most common metrics agree, misprints left out."""
    if any((other.paper, other.table) == (row.paper, row.table) for other in result):
        return False  # what one table prints twice are two results
    known = {other.predictor for other in result} - {""}
    if known and (row.predictor not in known if row.predictor else row.classifier and known == {"encoder"}):
        return False
    common = [
        abs(row.metrics[name] - other.metrics[name])
        for other in result
        for name in row.metrics.keys() & other.metrics.keys() - row.misprint.keys() - other.misprint.keys()
    ]
    return 2 * sum(difference < ROUNDING for difference in common) > len(common)


def _kind(result: Result) -> str:
    known = next((row.predictor for row in result if row.predictor), "")
    return known or ("classifier" if any(row.classifier for row in result) else "")


def _preference(result: Result) -> tuple[bool, bool, bool, int]:
    """What is shown first: the method's own paper, without misprints, measured on the usual split, printed most often.

    Of one paper's results the first one comes first, since sorting is stable.
    """
    own = any(row.introduced for row in result)
    return not own, all(row.misprint for row in result), any(row.split for row in result), 0 if own else -len(result)


def _shown(results: Sequence[Result], kind: str, claims: Sequence[Claim]) -> Row:
    """The first result as a row, the others folded into it."""
    head = sorted(results[0], key=lambda row: (not row.introduced, bool(row.misprint)))
    rows = [printed_row(row, claims) for row in head]
    others = [printed_row(row, claims) for result in results[1:] for row in result]
    facts = _joined_facts(rows, others) | {"paper": _sources(head)}
    if len(results) > 1:
        facts["variants"] = f"+{len(results) - 1}"
    return replace(
        rows[0],
        variant="" if rows[0].variant in KINDS else rows[0].variant,
        kind=kind,
        metrics={name: value for row in reversed(rows) for name, value in row.metrics.items()},
        printed={name: text for row in reversed(rows) for name, text in row.printed.items()},
        misprints=_misprints_of_all(rows),
        facts=facts,
        claims=tuple(dict.fromkeys(claim for row in rows for claim in row.claims)),
        papers=tuple(dict.fromkeys(row.papers[0] for row in rows)),
        disagreements=_disagreements(results),
        folded=(*rows, *others),
    )


def _joined_facts(rows: Sequence[Row], others: Sequence[Row]) -> dict[str, Value]:
    """What rows of one result say, the first before the others, and the costs that the paper prints elsewhere."""
    facts = {name: fact for row in reversed(rows) for name, fact in row.facts.items() if name != "role"}
    for cost in (row for row in others if row.facts["role"] == "cost" and not row.variant):
        facts = {**{name: cost.facts[name] for name in COSTS if name in cost.facts}, **facts}
    if notes := dict.fromkeys(str(row.facts["note"]) for row in rows if "note" in row.facts):
        facts["note"] = " ".join(notes)
    return facts


def _misprints_of_all(rows: Sequence[Row]) -> dict[str, str]:
    """The misprints that are in every row that prints the metric."""
    return {
        name: text
        for row in rows
        for name, text in row.misprints.items()
        if all(name in other.misprints for other in rows if name in other.metrics)
    }


def _disagreements(results: Sequence[Result]) -> dict[str, str]:
    """For each metric that is printed with several values, these values and their sources."""
    others = [row for result in results for row in result if row.role == "main" and row.variant in COMPARABLE]
    rows = {row.key: row for row in [*results[0], *(row for row in others if not row.split)]}.values()
    values: dict[str, dict[str, list[PublishedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for metric in row.metrics:
            printed = values[metric]
            if metric not in row.misprint:
                printed[row.printed[metric]].append(row)
    return {
        metric: " or ".join(f"{value} ({_sources(printing)})" for value, printing in own.items())
        for metric, own in values.items()
        if len(set(map(float, own))) > 1
    }


def _sources(rows: Iterable[PublishedRow]) -> str:
    """Papers and tables: ``dexml Table 1, 4; prime Table 2``."""
    sources = []
    for paper, own in grouped(rows, lambda row: row.paper).items():
        first, *rest = dict.fromkeys(row.table for row in own)
        sources.append(f"{paper} {', '.join([first, *(table.removeprefix('Table ') for table in rest)])}")
    return "; ".join(sources)
