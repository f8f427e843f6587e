"""Analyses as tables to read, and as files for other programs: one CSV of figures, one of curves, one JSON of all."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.evaluation.analysis import DECILES, REGIMES, SIMILARITY, Analysis
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.text_table import TextTable

FIGURES = {
    "contribution": "what labels of a bin add to P@{k}",
    "recall": "true pairs of a bin among the best {k} of their query",
    "coverage": "true labels of a bin among the best {k} of some query",
}


def analysis_tables(analyses: Mapping[str, Analysis]) -> list[TextTable]:
    """The tables of analyses on one dataset, by name of the trial; the first is what the others are compared with."""
    first = next(iter(analyses.values()))
    grids = [_summary(analyses)]
    for partition in first.breakdowns:
        wanted = FIGURES if partition == REGIMES else ("contribution",)
        grids += [_bins(analyses, partition, figure) for figure in wanted]
    return grids


def _summary(analyses: Mapping[str, Analysis]) -> TextTable:
    first = next(iter(analyses.values()))
    ks = tuple(first.trade_off)
    headings = (
        "trial",
        *(f"P@{k}" for k in ks),
        *(f"PSP@{k}" for k in ks),
        *(f"coverage@{k}" for k in ks),
        f"distinct@{first.k}",
        "area",
        "separation",
    )
    rows = []
    for name, analysis in analyses.items():
        precision, propensity = zip(*analysis.trade_off.values(), strict=True)
        figures = [*precision, *propensity, *analysis.coverage.values(), analysis.distinct[analysis.k]]
        figures += [analysis.precision_recall.area, analysis.scores.separation]
        rows.append((name, *map(_per_cent, figures)))
    notes = (
        "coverage: true labels found for at least one query; distinct: labels predicted at all, of all labels. "
        "area: under precision against recall, all queries together; separation: how often a true pair scores above a "
        "false one. Both know the kept labels of each query only.",
    )
    return TextTable("precision, propensity, coverage, scores (per cent)", headings, tuple(rows), notes)


def _bins(analyses: Mapping[str, Analysis], partition: str, figure: str) -> TextTable:
    """A row a bin, a column a trial; of contributions also the sum, and how the trials compare with the first."""
    (reference, first), *others = analyses.items()
    bins = first.breakdowns[partition]
    columns = [getattr(analysis.breakdowns[partition], figure) for analysis in analyses.values()]
    compared = [(name, _gain(columns[0], column)) for (name, _), column in zip(others, columns[1:], strict=True)]
    compared = compared if figure == "contribution" else []
    rows = [
        (
            name,
            f"{bins.num_labels[i]:,}",
            f"{bins.num_pairs[i]:,}",
            *(_per_cent(column[i]) for column in columns),
            *(_signed(gain[i]) for _, gain in compared),
        )
        for i, name in enumerate(bins.bins)
    ]
    if figure == "contribution":
        rows.append(
            (
                "all",
                f"{bins.num_labels.sum():,}",
                f"{bins.num_pairs.sum():,}",
                *(_per_cent(c.sum()) for c in columns),
                *(_signed(_gain(columns[0].sum(), c.sum())) for c in columns[1:]),
            )
        )
    headings = ("bin", "labels", "test pairs", *analyses, *(f"Δ {name}" for name, _ in compared))
    title = f"{partition}: {FIGURES[figure].format(k=first.k)} (per cent)"
    notes = [f"Δ: relative to {reference}."] if compared else []
    return TextTable(title, headings, tuple(rows), (*_notes(partition), *notes) if figure == "contribution" else ())


def _notes(partition: str) -> tuple[str, ...]:
    if partition == DECILES:
        return ("Decile 1 holds the tenth of the labels with the most training queries, 10 that with the fewest.",)
    if partition.startswith(SIMILARITY):
        return ("Three bins of equally many labels by the mean cosine of a label's vector and its 10 nearest others.",)
    return ()


def _gain(reference: Any, figure: Any) -> Any:
    """How much more `figure` is, relative to `reference`; NaN where that is 0."""
    reference, figure = np.asarray(reference, float), np.asarray(figure, float)
    return np.divide(figure - reference, reference, out=np.full(reference.shape, np.nan), where=reference > 0)


def _per_cent(figure: float) -> str:
    return "-" if np.isnan(figure) else f"{100 * figure:.2f}"


def _signed(figure: float) -> str:
    return "-" if np.isnan(figure) else f"{100 * figure:+.1f} %"


def write_analyses(analyses: Mapping[str, Analysis], out: Path) -> list[Path]:
    """Write `figures.csv`, `curves.csv` and `analysis.json` into the folder `out`; every digit, fractions."""
    contents = {
        "figures.csv": _csv(("trial", "partition", "bin", "k", "figure", "value"), _figures(analyses)),
        "curves.csv": _csv(("trial", "curve", "x", "y", "threshold"), _points(analyses)),
        "analysis.json": json.dumps({name: _plain(asdict(each)) for name, each in analyses.items()}, indent=1) + "\n",
    }
    for name, content in contents.items():
        with atomic_write(out / name) as file:
            file.write(content.encode())
    return [out / name for name in contents]


def _figures(analyses: Mapping[str, Analysis]) -> Iterator[Sequence[Any]]:
    for name, analysis in analyses.items():
        for k, (precision, propensity) in analysis.trade_off.items():
            yield name, "", "", k, "P", precision
            yield name, "", "", k, "PSP", propensity
            yield name, "", "", k, "coverage", analysis.coverage[k]
            yield name, "", "", k, "distinct", analysis.distinct[k]
        yield name, "", "", "", "area", analysis.precision_recall.area
        yield name, "", "", "", "separation", _known(analysis.scores.separation)
        for partition, bins in analysis.breakdowns.items():
            for i, bin in enumerate(bins.bins):
                yield name, partition, bin, "", "labels", int(bins.num_labels[i])
                yield name, partition, bin, "", "test pairs", int(bins.num_pairs[i])
                for figure in FIGURES:
                    yield name, partition, bin, analysis.k, figure, _known(getattr(bins, figure)[i])


def _points(analyses: Mapping[str, Analysis]) -> Iterator[Sequence[Any]]:
    """Recall and precision by threshold; the middle of each bin of scores and the densities there."""
    for name, analysis in analyses.items():
        curve, scores = analysis.precision_recall, analysis.scores
        for recall, precision, threshold in zip(curve.recall, curve.precision, curve.thresholds, strict=True):
            yield name, "recall, precision", recall, precision, threshold
        middles = (scores.edges[:-1] + scores.edges[1:]) / 2
        for of, density in (("true", scores.true), ("false", scores.false)):
            for middle, value in zip(middles, density, strict=True):
                yield name, f"score, density of {of} pairs", middle, value, ""


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    """What JSON can hold: lists for arrays, null for what is not a number."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return _known(float(value))
    return value.item() if isinstance(value, np.generic) else value


def _csv(header: Sequence[str], rows: Iterator[Sequence[Any]]) -> str:
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(header)
    lines.writerows(rows)
    return text.getvalue()
