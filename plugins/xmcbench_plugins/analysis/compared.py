"""How two trials, or the seeds of two configurations, differ: tables of metrics and bins, queries that change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import shorten

from xmcbench.data import Dataset
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.comparison import ComparedMetric
from xmcbench.reporting.notes import LOWER
from xmcbench.reporting.text_table import TextTable, percent_interval, printable
from xmcbench.reporting.words import enumeration, number
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.comparing import Comparison


def _seeds(first: Sequence[Record], second: Sequence[Record]) -> str:
    """What the intervals are over, in words."""
    seeds = [[record.trial.seed for record in side] for side in (first, second)]
    if len(first) == len(second) == 1:
        return "over test queries, paired; one seed: nothing is known of other training runs"
    if seeds[0] == seeds[1]:
        return f"over test queries and {len(first)} seeds, Student's, paired"
    return f"over test queries, paired, and seeds ({len(first)} and {len(second)}), not paired, Student's"


def comparable_metrics(records: tuple[Record, Record], called: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
    """The `wanted` metrics of two records, or all that both have.

    Raises XMCBenchError if the trials were scored against different test targets, or by different definitions.
    """
    if records[0].truth_hash != records[1].truth_hash:
        raise XMCBenchError(f"{' and '.join(called)} have different test labels: nothing to compare")
    known = [name for name in records[0].metrics if name in records[1].metrics]
    names = list(wanted) or known
    if unknown := [name for name in names if name not in known]:
        raise UnknownNameError("metric", unknown[0], known, "in both records")
    other = [name for name in names if records[0].definition(name) != records[1].definition(name)]
    if other:
        raise XMCBenchError(
            f"{' and '.join(called)} have {other[0]} by different definitions: `xmcbench rescore` computes it again"
        )
    return names


def comparison_table(
    sides: tuple[list[Record], list[Record]], names: Sequence[str], compared: Sequence[ComparedMetric]
) -> TextTable:
    """The metrics of two trials, or of the seeds of two configurations, and their differences; `names` are theirs."""
    first, second = sides[0][0].trial, sides[1][0].trial
    notes = (
        *(f"{number}: {name}" for number, name in enumerate(names, start=1)),
        f"Per cent. Difference: 1 minus 2, with 95 % interval and two-sided p ({_seeds(*sides)}); * the interval "
        "excludes 0. Each line is a test of its own: p and * are not corrected for the number of lines. Sees: the "
        "smallest true difference that this comparison would show with 80 % power.",
    )
    lower = [result.name for result in compared if sides[0][0].is_lower(result.name)]
    if lower:
        notes = (*notes, f"{LOWER.strip()}: the lowest value is the best.")
    named = [replace(own, name=f"{own.name}{LOWER}") if own.name in lower else own for own in compared]
    return compared_table(f"{first.dataset}: {first.label} and {second.label}", "metric", named, notes)


SHOWN = 4  # metrics that a sentence names


def verdict(labels: Sequence[str], compared: Sequence[ComparedMetric]) -> str:
    """By which metrics one of two configurations, called by their `labels`, is significantly better; in a sentence."""
    sides: list[list[str]] = [[], []]
    for result in compared:
        if result.difference.significant:
            sides[result.difference.value < 0].append(result.name)
    better = [
        f"{label} is significantly better by {enumeration(own, SHOWN)}{' metrics' * (len(own) > SHOWN)}"
        for label, own in zip(labels, sides, strict=True)
        if own
    ]
    rest = len(compared) - sum(map(len, sides))
    if not better:
        return "The two do not differ significantly by any of these metrics."
    others = f"; by the other {number(rest, 'metric')} they do not differ significantly" if rest else ""
    return f"{'; '.join(better)}{others}."


def compared_table(title: str, kind: str, compared: Sequence[ComparedMetric], notes: Sequence[str] = ()) -> TextTable:
    """A line for each of what is compared, of a `kind`: metrics, or bins of labels."""
    rows = []
    for result in compared:
        difference = result.difference
        star = "*" if difference.significant else ""
        values = (f"{100 * result.first:.2f}", f"{100 * result.second:.2f}", f"{100 * difference.value:+.2f}{star}")
        interval = percent_interval(difference.interval, "+")
        rows.append((result.name, *values, interval, f"{difference.p:.3f}", f"{100 * difference.detectable():.2f}"))
    return TextTable(title, (kind, "1", "2", "difference", "95 %", "p", "sees"), rows, notes)


def changed_queries(
    comparison: Comparison, dataset: Dataset, predictions: tuple[Predictions, Predictions], count: int
) -> Iterator[str]:
    """The number of queries that change, and the texts and labels of those that change most."""
    change = comparison.change
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    yield (
        f"{len(change):,} test queries, hits among the first {comparison.k}: 1 has more for {better:,}, "
        f"2 for {worse:,}, equal for {len(change) - better - worse:,}."
    )
    gained, lost = comparison.most_changed(count)
    for query in (*gained, *lost):
        true = dataset.test.targets[[query]].indices.tolist()
        yield f"\nquery {query}: {_line(dataset.test.texts[query])}"
        yield f"  true: {_labels(dataset, true, set())}"
        for side, (own, hits) in enumerate(zip(predictions, comparison.hits, strict=True), start=1):
            best = [label for label in own.indices[query, : comparison.k].tolist() if label >= 0]
            yield f"  {side} ({int(hits[query])}): {_labels(dataset, best, set(true))}"


def _labels(dataset: Dataset, labels: Sequence[int], true: set[int]) -> str:
    """Label texts; true labels are marked with +."""
    marked = ("+" * (label in true) + _line(dataset.label_texts[label], 40) for label in labels)
    return "; ".join(marked) or "none"


def _line(text: str, width: int = 160) -> str:
    return printable(shorten(text, width, placeholder="…"))
