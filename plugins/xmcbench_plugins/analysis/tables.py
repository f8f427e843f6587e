"""Analyses of predictions, of one dataset or of methods over several, and comparisons of two, as tables and as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from xmcbench.data import Dataset
from xmcbench.data.pairs import binary, contains
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.analysis import DECILES, REGIMES, SIMILARITY, Analysis, analyse, partitions
from xmcbench.evaluation.calibration import Calibration
from xmcbench.evaluation.comparison import Mean, across_datasets
from xmcbench.evaluation.evaluator import stored_predictions
from xmcbench.evaluation.significance import difference, samples, significant_together
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.rows import budget_text, grouped
from xmcbench.reporting.text_table import TextTable
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.analysis.likeness import NEAR, likeness
from xmcbench_plugins.analysis.suite_tables import ResampledRecord


def analyse_together(
    store: Store,
    records: Iterable[Record],
    dataset: Dataset,
    k: int = 5,
    similarity: np.ndarray | None = None,
    calibrations: Mapping[str, Calibration | None] = MappingProxyType({}),
) -> dict[str, Analysis]:
    """The analyses of trials on one dataset, by name. Raises `XMCBenchError` where predictions are missing.

    `calibrations` are those of the models, by key.
    """
    bins = partitions(dataset, similarity)
    return {
        name: analyse(stored_predictions(store, record, dataset), dataset, bins, k, calibrations.get(record.key))
        for name, record in names(records).items()
    }


def names(records: Iterable[Record]) -> dict[str, Record]:
    """Each record by its label; where labels repeat, by label and seed; where these repeat, by label and key."""
    named = {record.key: record for record in records}
    for form in ("{0.trial.label}", "{0.trial.label} seed {0.trial.seed}", "{0.trial.label} {0.key}"):
        by_name = {form.format(record): record for record in named.values()}
        if len(by_name) == len(named):
            break
    return by_name


METRICS = {
    "contribution": "contribution of the labels of a bin to P@{k}",
    "recall": "true pairs of a bin among the top {k} of their query",
    "coverage": "true labels of a bin among the top {k} of at least one query",
}


def analysis_tables(analyses: Mapping[str, Analysis]) -> list[TextTable]:
    """Tables of the analyses of trials on one dataset, by name of the trial. The first trial is the reference."""
    first = next(iter(analyses.values()))
    tables = [_summary(analyses), *_probabilities(analyses)]
    for partition in first.breakdowns:
        metrics = METRICS if partition == REGIMES else ("contribution",)
        tables += [_bins(analyses, partition, metric) for metric in metrics]
    return tables


def _summary(analyses: Mapping[str, Analysis]) -> TextTable:
    first = next(iter(analyses.values()))
    of_k = [f"{metric}@{k}" for metric in ("P", "PSP", "coverage") for k in first.trade_off]
    headings = ("trial", *of_k, f"distinct@{first.k}", "area", "separation")
    rows = []
    for name, analysis in analyses.items():
        precision, propensity = zip(*analysis.trade_off.values(), strict=True)
        values = [*precision, *propensity, *analysis.coverage.values(), analysis.distinct[analysis.k]]
        values += [analysis.precision_recall.area, analysis.scores.separation]
        rows.append((name, *map(_per_cent, values)))
    notes = (
        "coverage: share of the true labels that are predicted for at least one of their queries; distinct: share of "
        "all labels that are predicted for any query. area: under the precision-recall curve of all queries together; "
        "separation: probability that a true pair scores above a false one. Both cover only the stored predictions.",
    )
    return TextTable("precision, propensity, coverage, scores (per cent)", headings, tuple(rows), notes)


def _probabilities(analyses: Mapping[str, Analysis]) -> Iterator[TextTable]:
    """How far the probabilities of labels are from the share of them that is true, where scores are probabilities."""
    rows = []
    for name, analysis in analyses.items():
        if (found := analysis.reliability) is not None:
            means = (values @ found.pairs / max(1, found.pairs.sum()) for values in (found.confidence, found.true))
            rows.append((name, *map(_per_cent, (found.error, *means))))
    if rows:
        notes = (
            f"Of the first {next(iter(analyses.values())).k} labels of all queries. error: expected calibration error "
            "in 15 bins of equal width. Trials without calibration and with scores outside 0..1 are left out.",
        )
        headings = ("trial", "error", "mean probability", "share true")
        yield TextTable("probabilities (per cent)", headings, tuple(rows), notes)


def near_table(store: Store, records: Iterable[Record], dataset: Dataset) -> TextTable | None:
    """P@1 of trials with and without the test texts that a training text nearly repeats; None without such texts."""
    found = likeness(dataset.train.texts, dataset.test.texts)
    if not found.near.any():
        return None
    truth, rows = binary(dataset.test.targets), []
    for name, record in names(records).items():
        first = stored_predictions(store, record, dataset).indices[:, :1]
        hits = contains(truth, first)[found.rows, 0]
        parts = (hits, hits[~found.near], hits[found.near])
        rows.append((name, *(_per_cent(part.mean() if len(part) else float("nan")) for part in parts)))
    num_near, num_all = int(found.near.sum()), len(found.rows)
    spaced = "" if num_all == len(truth.indptr) - 1 else " evenly spaced"
    notes = (
        f"Of {num_all:,}{spaced} test texts, {num_near:,} have the words of a training text, or nearly (cosine over "
        f"{NEAR}).",
    )
    headings = ("trial", "all", "new texts", "near a training text")
    return TextTable("P@1 with and without test texts near a training text (per cent)", headings, tuple(rows), notes)


def _bins(analyses: Mapping[str, Analysis], partition: str, metric: str) -> TextTable:
    """One row per bin and one column per trial. Contributions also have a sum and gains over the first trial."""
    reference, *others = analyses
    bins = analyses[reference].breakdowns[partition]
    columns = [getattr(analysis.breakdowns[partition], metric) for analysis in analyses.values()]
    sums = metric == "contribution"

    def row(name: str, labels: int, pairs: int, values: list[float]) -> tuple[str, ...]:
        gains = [_signed(relative_gain(values[0], value)) for value in values[1:] if sums]
        return name, f"{labels:,}", f"{pairs:,}", *map(_per_cent, values), *gains

    rows = [
        row(name, labels, pairs, [column[i] for column in columns])
        for i, (name, labels, pairs) in enumerate(zip(bins.bins, bins.num_labels, bins.num_pairs, strict=True))
    ]
    if sums:
        rows.append(row("all", bins.num_labels.sum(), bins.num_pairs.sum(), [column.sum() for column in columns]))
    headings = ("bin", "labels", "test pairs", *analyses, *(f"Δ {name}" for name in others if sums))
    title = f"{partition}: {METRICS[metric].format(k=analyses[reference].k)} (per cent)"
    notes = [f"Δ: relative to {reference}."] if others else []
    return TextTable(title, headings, tuple(rows), (*_notes(partition), *notes) if sums else ())


def _notes(partition: str) -> tuple[str, ...]:
    if partition == DECILES:
        return ("Decile 1 contains the labels with the most training queries, decile 10 those with the fewest.",)
    if partition.startswith(SIMILARITY):
        return ("Three bins of equal size, by the mean cosine similarity of a label to its 10 nearest labels.",)
    return ()


def relative_gain(reference: Any, value: Any) -> Any:
    """The relative gain of `value` over `reference`; NaN if `reference` is 0."""
    reference, value = np.asarray(reference, float), np.asarray(value, float)
    return np.divide(value - reference, reference, out=np.full(reference.shape, np.nan), where=reference > 0)


def _per_cent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.2f}"


def _signed(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:+.1f} %"


def write_analyses(analyses: Mapping[str, Analysis], out: Path) -> Path:
    """Write everything in the analyses to `analysis.json` in the folder `out`, as fractions at full precision."""
    plain = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))
    content = plain.dump_python(dict(analyses), mode="json", fallback=lambda array: array.tolist())
    with atomic_write(out / "analysis.json") as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
    return out / "analysis.json"


Place = tuple[str, str]  # label and dataset


def across_datasets_table(records: Sequence[Record], metric: str, resampled: ResampledRecord) -> TextTable:
    """Rank, wins and improvability of each label over the datasets of `records`; seeds are averaged.

    Raises XMCBenchError unless each label has trials of one configuration on every dataset, with the metric.
    """
    trials = _trials(records, metric)
    values = {place: fmean(record.metrics[metric] for record in own) for place, own in trials.items()}
    datasets = list(dict.fromkeys(dataset for _, dataset in values))
    labels = list(dict.fromkeys(label for label, _ in values))
    for label, dataset in product(labels, datasets):
        if (label, dataset) not in values:
            raise XMCBenchError(f"{label} has no trial on {dataset}: expected each method on every dataset")
    metric_DM = np.array([[values[label, dataset] for label in labels] for dataset in datasets])
    lower = any(record.is_lower(metric) for record in records)
    standings = across_datasets(metric_DM, lower_is_better=lower)
    ranked = sorted(zip(labels, standings, strict=True), key=lambda pair: pair[1].mean_rank.value)
    decided = _decided(trials, metric, resampled)
    rows = tuple(
        (
            label,
            _mean_text(standing.mean_rank, 1),
            _mean_text(standing.win_rate, 100),
            f"{sum(label == better for better, _ in decided)}, {sum(label == worse for _, worse in decided)}",
            _mean_text(standing.improvability, 100),
        )
        for label, standing in ranked
    )
    notes = (
        f"{len(datasets)} datasets: {', '.join(datasets)}",
        "95 % intervals over resamples of the datasets. Win rate: share of the other methods that it is above, in per "
        "cent. Improvability: by how much of its error the best method's error is lower, in per cent.",
        f"Above, below: comparisons (of {len(labels) - 1} other methods on {len(datasets)} datasets) in which it is "
        "significantly better and worse, over test queries and seeds, Holm over all pairs.",
    )
    headings = ("method", "mean rank", "win rate", "above, below", "improvability")
    return TextTable(f"methods over {len(datasets)} datasets: {metric}", headings, rows, notes)


def _trials(records: Sequence[Record], metric: str) -> dict[Place, list[Record]]:
    """The records by label and dataset, one for each seed; all have the metric."""
    seeds: dict[Place, dict[int, Record]] = defaultdict(dict)
    for record in records:
        trial = record.trial
        if metric not in record.metrics:
            raise XMCBenchError(f"{trial.dataset}/{trial.label} ({record.key}) has no {metric}")
        alike = seeds[trial.label, trial.dataset]
        if trial.seed in alike:
            budgets = ", ".join(budget_text(r.trial.budget.limits()) for r in (alike[trial.seed], record))
            raise XMCBenchError(
                f"{trial.dataset}/{trial.label} is several configurations of seed {trial.seed} ({budgets}): "
                "name the trials by their keys"
            )
        alike[trial.seed] = record
    for alike in seeds.values():
        samples(list(alike.values()), [{}] * len(alike))  # which refuses those that differ in more than their seed
    contents = grouped(records, lambda record: record.trial.dataset)
    for dataset, own in contents.items():
        if len({(record.trial.dataset_hash, record.truth_hash) for record in own}) > 1:
            raise XMCBenchError(f"{dataset} has several contents in these trials: name those of one by their keys")
    if len({record.definition(metric) for record in records}) > 1:
        raise XMCBenchError(f"{metric} has several definitions in these trials: `xmcbench rescore` computes it again")
    return {place: [alike[seed] for seed in sorted(alike)] for place, alike in seeds.items()}


def _decided(
    trials: Mapping[Place, Sequence[Record]], metric: str, resampled: ResampledRecord
) -> list[tuple[str, str]]:
    """The better and the worse label of each pair on one dataset that differs significantly."""
    stored = {place: samples(own, [resampled(record, [metric]) for record in own]) for place, own in trials.items()}
    known = [(*place, own[metric]) for place, own in stored.items() if metric in own]
    pairs = [(first, second) for first, second in combinations(known, 2) if first[1] == second[1]]
    found = [difference(first[2], second[2]) for first, second in pairs]
    sign = -1 if any(record.is_lower(metric) for own in trials.values() for record in own) else 1
    return [
        (first[0], second[0]) if sign * own.value > 0 else (second[0], first[0])
        for (first, second), own, significant in zip(pairs, found, significant_together(found), strict=True)
        if significant
    ]


def _mean_text(mean: Mean, scale: float) -> str:
    low, high = mean.interval
    return f"{scale * mean.value:.2f} ({scale * low:.2f} to {scale * high:.2f})"
