"""Which method, at which budget: figures and tables of docs/findings.md and docs/results.md, from accepted records.

Rows are compared over test queries and seeds with Holm's correction (`xmcbench/evaluation/significance.py`). Quality
along the budget is that on held-out training queries, which also chose settings and checkpoints.

    python benchmarks/findings.py                  # from leaderboard/measured
    python benchmarks/findings.py --store DIR --study records    # from a store, before its trials are accepted
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import fmean

from report import put

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import Sample, difference, estimate, rank_intervals, significant_together
from xmcbench.reporting import curated, plots
from xmcbench.reporting.published import ACCEPTED
from xmcbench.reporting.rows import mean_curve
from xmcbench.reporting.text_table import format_value
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FINDINGS, RESULTS, PICTURES = DOCS / "findings.md", DOCS / "results.md", DOCS / "pictures"
SUMMARISED = ("P@5", "PSP@5")  # in the table of all datasets
METRICS = ("P@1", "P@5", "PSP@5", "macro-F1@5", "R@100")
RANKED, ALONG = "P@5", "nDCG@5"
SHARES = (0.1, 0.3, 1.0)  # of the budget
CHANGE = 0.9  # of the budget: how ranks change when it changes by 10 %
NEAR = 0.04  # of the budget: an evaluation stands at the first step after its share, a shortlist may lie between
FLAT = 0.7, 0.01  # converged: ALONG rises by at most the second from the first share of the budget on
BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
OVER_CURVES = {"fontsize": 6, "va": "center", "arrowprops": plots.LEADER, "bbox": BEHIND}  # a method's number


@dataclass(frozen=True)
class Study:
    """A suite on a dataset, and the figures that the document shows of it."""

    name: str
    suite: str
    dataset: str
    figures: tuple[str, ...] = ()
    beside: str = ""  # a study with another encoder: its rows stand beside these, in place of other tables
    also: tuple[tuple[str, str], ...] = ()  # further suites, and a label of each, with seeds of their own number


_STUDIES = (
    Study(
        "titles",
        "evidence",
        "lf-tate-titles-16k",
        ("quality", "budget", "ranks", "tail"),
        also=(("evidence-one-vs-rest", "one-vs-rest"), ("positives-all", "prime-all-positives")),
    ),
    Study(
        "records",
        "evidence-tibkat",
        "lf-tibkat-15k",
        ("quality", "budget"),
        also=(("positives-all", "prime-all-positives"),),
    ),
    Study("gnd", "evidence-gnd", "lf-tibkat-gnd-38k", ("quality",)),
    Study("packages", "evidence-packages", "debian-packages", ("quality",)),
    Study("layers", "evidence-minilm", "lf-tate-titles-16k", beside="titles"),
    Study("layers-records", "evidence-minilm-tibkat", "lf-tibkat-15k", beside="records"),
)
STUDIES = {study.name: study for study in _STUDIES}


@dataclass(frozen=True)
class Method:
    """The trials of a label of the suite, one for each seed."""

    label: str
    records: Sequence[Record]
    samples: Mapping[str, Sample]

    @property
    def named(self) -> curated.NamedMethod:
        return curated.methods().of(self.label, self.records[0].trial.method)

    @property
    def name(self) -> str:
        """As in papers, for figures."""
        return plots.plain(self.named.call(self.label))

    @property
    def family(self) -> int:
        """The number of its family, which is that of its colour."""
        return curated.methods().colour(self.named)

    @property
    def colour(self) -> str:
        return plots.COLOURS[self.family]

    @property
    def trained(self) -> bool:
        """Whether it spends the budget, and was evaluated within it."""
        return any(record.curve for record in self.records)

    @property
    def evaluated_along(self) -> bool:
        """Whether it was evaluated along the budget: second stages are at their end alone."""
        return any(len(record.curve) > 1 for record in self.records)

    def at(self, share: float) -> float:
        """The best quality on held-out queries up to a share of the operations; without training, that of tuning."""
        if not self.trained:
            return float((self.records[0].chosen or {}).get("quality", 0.0))
        return self._best(lambda record, own: own["flops"] <= (share + NEAR) * (record.trial.budget.flops or 0))

    def _best(self, counts: Callable[[Record, Mapping[str, float]], bool]) -> float:
        """The best evaluation of those that count, mean over seeds; 0 of none."""
        return fmean(
            max((own[ALONG] for own in record.curve if counts(record, own)), default=0.0) for record in self.records
        )

    @property
    def converged(self) -> str:
        """For a table: yes, no, or - where it was not evaluated along the budget."""
        if not self.evaluated_along:
            return "-"
        start, rise = FLAT
        return "yes" if self.at(1.0) - self._best(lambda _, own: own["fraction"] <= start + NEAR) <= rise else "no"

    def spent(self, name: str) -> float:
        return fmean(record.spent[name] or 0 for record in self.records)


def read(root: Path, study: Study) -> list[Method]:
    """The finished methods of the study, best first."""
    store, found = Store(root), defaultdict(list)
    for record in store.records():
        suite, label = record.suite, record.trial.label
        ours = (suite == study.suite and "/" not in label) or (suite, label) in study.also  # no sample of tuning
        if ours and record.trial.dataset == study.dataset and record.status is Status.OK:
            found[label].append(record)
    if not found:
        raise XMCBenchError(f"{root} has no trials of the suite {study.suite!r} on {study.dataset}")
    most = max(map(len, found.values()))
    whole = {
        label: sorted(own, key=lambda one: one.trial.seed)
        for label, own in found.items()
        if len(own) == most or (own[0].suite, label) in study.also
    }
    methods = [Method(label, own, stored_samples(store, own, METRICS)) for label, own in whole.items()]
    return sorted(methods, key=lambda method: -method.samples[RANKED].mean)


def written(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def table(methods: Sequence[Method]) -> str:
    """A row for each method; a rank interval holds together with all others at 95 %."""
    ranks = rank_intervals([method.samples[RANKED] for method in methods])
    rows = []
    for (low, high), method in zip(ranks, methods, strict=True):
        cells = [f"{low}" if low == high else f"{low} to {high}", method.label]
        for metric in METRICS:
            own = estimate(method.samples[metric])
            cells.append(f"{100 * own.value:.1f} ±{50 * (own.interval[1] - own.interval[0]):.1f}")
        flops = method.spent("flops")
        queries = fmean(record.spent["predicted_queries"] for record in method.records)
        cells += [
            format_value(flops, "count") if flops else "-",
            format_value(method.spent("peak_bytes"), "bytes"),
            f"{1000 * method.spent('predict_cpu_seconds') / queries:.2f}" if queries else "-",
            method.converged,
        ]
        rows.append(cells)
    heads = (f"rank by {RANKED}", "method", *METRICS, "operations", "memory", "ms a query", "converged")
    return written(heads, rows)


def against(methods: Sequence[Method], rivals: Sequence[str], metrics: Sequence[str]) -> str:
    """The differences of every trained method from each rival; bold: significant, corrected for all of them."""
    by_label = {method.label: method for method in methods}
    known = [name for name in rivals if name in by_label]
    rows = [method for method in methods if method.trained]
    pairs = [(method, by_label[name], metric) for method in rows for name in known for metric in metrics]
    found = [difference(first.samples[metric], second.samples[metric]) for first, second, metric in pairs]
    texts = [
        f"**{100 * own.value:+.1f}**" if clear else f"{100 * own.value:+.1f}"
        for own, clear in zip(found, significant_together(found), strict=True)
    ]
    columns = [f"{metric} over {name}" for name in known for metric in metrics]
    width = len(columns)
    cells = ([method.label, *texts[width * at : width * (at + 1)]] for at, method in enumerate(rows))
    return written(["method", *columns], cells)


def along(methods: Sequence[Method]) -> str:
    """Quality on held-out queries at shares of the budget, and the rank among trained methods."""
    rows = [method for method in methods if method.trained]
    orders = {share: sorted(rows, key=lambda one: -one.at(share)) for share in (*SHARES, CHANGE)}
    cells = []
    for method in orders[1.0]:
        places = [(method.at(share), orders[share].index(method) + 1) for share in SHARES]
        cells.append([method.label, *(f"{100 * own:.1f} ({rank})" if own else "-" for own, rank in places)])
    before, after = ([one for one in orders[share] if one.evaluated_along] for share in (CHANGE, 1.0))
    moved = sum(first is not second for first, second in zip(before, after, strict=True))
    ranked = written(["method", *(f"{100 * share:g} %" for share in SHARES)], cells)
    return f"{ranked}\n\nWith 10 % less budget {moved} of {len(after)} ranks change, second stages apart."


def encoders(methods: Sequence[Method], others: Sequence[Method]) -> str:
    """A pair of rows for each method that two encoders were trained with, by the first; then the others."""
    by_label = {method.label: method for method in others}
    both = [(method, by_label.pop(method.label)) for method in methods if method.label in by_label]
    rows = []
    for own in (*chain.from_iterable(both), *by_label.values()):
        found = [f"{100 * estimate(own.samples[metric]).value:.1f}" for metric in METRICS]
        flops = format_value(own.spent("flops"), "count")
        rows.append([own.label, own.records[0].suite, str(len(own.records)), *found, flops, own.converged])
    return written(("method", "suite", "seeds", *METRICS, "operations", "converged"), rows)


def summary(read_study: Callable[[Study], list[Method]]) -> str:
    """P@5 and PSP@5 of the methods that most datasets have, by their mean share of the best P@5; the best is bold."""
    studies = [study for study in STUDIES.values() if not study.beside]
    columns = [(study, metric) for study in studies for metric in SUMMARISED]
    values: dict[str, dict[tuple[Study, str], float]] = defaultdict(dict)
    for study, metric in columns:
        for method in read_study(study):
            values[method.label][study, metric] = round(100 * method.samples[metric].mean, 1)
    rows = {label: own for label, own in values.items() if len(own) > len(columns) / 2}
    best = {column: max(own.get(column, 0) for own in rows.values()) for column in columns}

    def share(label: str) -> float:
        return fmean(own / best[column] for column, own in rows[label].items() if column[1] == RANKED)

    order = sorted(rows, key=share, reverse=True)
    heads = ["method", *(f"{metric} {study.name}" for study, metric in columns)]
    return written(heads, ([label, *(_marked(rows[label].get(own), best[own]) for own in columns)] for label in order))


def _marked(value: float | None, best: float) -> str:
    return "" if value is None else f"**{value:.1f}**" if value == best else f"{value:.1f}"


def blocks(study: Study, read_study: Callable[[Study], list[Method]]) -> dict[str, str]:
    """The tables of the document, by name."""
    methods = read_study(study)
    if study.beside:
        return {f"{study.name}-table": encoders(read_study(STUDIES[study.beside]), methods)}
    return {
        f"{study.name}-table": table(methods),
        f"{study.name}-rivals": against(methods, ("plt", "parabel", "tfidf-neighbours"), ("P@1", "P@5")),
        f"{study.name}-budget": along(methods),
    }


KEY_LINE = 0.05  # inches below a figure for each method in its key of three columns


def draw_quality(methods: Sequence[Method], study: Study, path: Path) -> None:
    """Final quality with its interval, best first."""
    with plots.drawing(path, plots.PAGE, 0.6 + 0.19 * len(methods)) as axes:
        for row, method in enumerate(methods):
            own = estimate(method.samples[RANKED])
            low, high = (100 * value for value in own.interval)
            axes.plot([low, high], [row, row], color=method.colour, linewidth=1.6)
            axes.plot(100 * own.value, row, "o", color=method.colour, markersize=4)
        axes.set_yticks(range(len(methods)), [method.name for method in methods])
        axes.set(ylim=(len(methods) - 0.5, -0.5), xlabel=f"{RANKED} on {study.dataset}, 95 % over queries and seeds")
        plots.family_legend(axes, [method.family for method in methods])


def above_floors(methods: Sequence[Method]) -> list[Method]:
    """Without what stands at the bottom for comparison, such as `popular`."""
    floor = curated.methods().families.index(curated.OTHER)
    return [method for method in methods if method.family != floor]


def by_budget(methods: Sequence[Method]) -> list[Method]:
    """Those that spend the budget, best first by held-out queries."""
    return sorted((method for method in methods if method.trained), key=lambda one: -one.at(1.0))


def draw_budget(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Quality along the budget; a dashed line for the best of a family that is not evaluated along it."""
    trained = by_budget(methods)
    ends_alone = (own for own in reversed(above_floors(methods)) if not own.evaluated_along and own.at(1.0))
    flat = {method.family: method for method in ends_alone}.values()
    drawn = [method for method in trained if method.evaluated_along]
    key = numbered(drawn)
    with plots.drawing(path, plots.PAGE, 3.4 + KEY_LINE * len(key)) as axes:
        ends = []
        for method, style in zip(drawn, plots.line_styles([method.family for method in drawn]), strict=True):
            curve = mean_curve(method.records)
            axes.errorbar(curve["flops"], curve[ALONG], curve.get(f"{ALONG} ±"), elinewidth=0.6, **style)
            ends.append((curve["flops"][-1], curve[ALONG][-1], method))
        last = max(x for x, _, _ in ends)
        for early in (False, True):  # lines that end elsewhere need no room beside these
            own = sorted((end for end in ends if (end[0] < last / 2) is early), key=lambda end: -end[1])
            right = 1.08 * max((x for x, _, _ in own), default=last)
            for (x, y, method), place in zip(own, plots.apart([y for _, y, _ in own], 2.6), strict=True):
                number = str(1 + drawn.index(method))
                axes.annotate(number, (x, y), (right, place), color=method.colour, **OVER_CURVES)
        for method in flat:
            axes.axhline(100 * method.at(1.0), color=method.colour, linestyle="--", linewidth=0.9, label=method.name)
        axes.set(xscale="log", xlabel="operations", ylabel=f"{ALONG}, held-out training queries")
        axes.margins(x=0.16)
        plots.family_legend(axes, [method.family for method in trained], key)


def numbered(methods: Sequence[Method]) -> list[str]:
    """The key of a figure with too many methods for their names."""
    return [f"{at}  {method.name}" for at, method in enumerate(methods, start=1)]


def draw_ranks(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Ranks along the budget."""
    trained = by_budget(methods)
    with plots.drawing(path, plots.PAGE, 3.0) as axes:
        for method in trained:
            seen = [place for place, share in enumerate(SHARES) if method.at(share)]
            ranks = [1 + sum(one.at(SHARES[place]) > method.at(SHARES[place]) for one in trained) for place in seen]
            axes.plot(seen, ranks, "o-", color=method.colour, markersize=3)
            axes.annotate(method.name, (len(SHARES) - 1, ranks[-1]), (6, -2), textcoords="offset points")
        axes.set_xticks(range(len(SHARES)), [f"{100 * share:g} %" for share in SHARES])
        axes.set(ylim=(len(trained) + 0.5, 0.5), xlabel="share of the operations", ylabel=f"rank by {ALONG}, held out")
        axes.set_xlim(-0.1, len(SHARES) - 0.3)
        plots.family_legend(axes, [method.family for method in trained])


def draw_tail(methods: Sequence[Method], study: Study, path: Path) -> None:  # noqa: ARG001
    """Frequent against rare labels."""
    above = above_floors(methods)
    key = numbered(above)
    with plots.drawing(path, plots.PAGE, 4.2 + KEY_LINE * len(key)) as axes:
        points = []
        for method in above:
            x, y = (estimate(method.samples[metric]) for metric in (RANKED, "macro-F1@5"))
            (left, right), (low, high) = ([100 * end for end in own.interval] for own in (x, y))
            points.append((100 * x.value, 100 * y.value))
            axes.plot([left, right], [points[-1][1]] * 2, color=method.colour, linewidth=0.7)
            axes.plot([points[-1][0]] * 2, [low, high], color=method.colour, linewidth=0.7)
            axes.plot(*points[-1], "o", color=method.colour, markersize=4)
        axes.margins(0.08)
        plots.label_points(axes, [(x, y, str(at)) for at, (x, y) in enumerate(points, start=1)], points)
        axes.set(xlabel=f"{RANKED} (frequent labels count most)", ylabel="macro-F1@5 (every label counts alike)")
        plots.family_legend(axes, [method.family for method in above], key)


DRAWN = {"quality": draw_quality, "budget": draw_budget, "ranks": draw_ranks, "tail": draw_tail}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=ACCEPTED)
    parser.add_argument("--study", choices=STUDIES, help="default: all")
    options = parser.parse_args()
    texts: dict[str, str] = {}
    read_study = cache(partial(read, options.store))
    for study in (STUDIES[name] for name in ([options.study] if options.study else STUDIES)):
        texts |= blocks(study, read_study)
        for figure in study.figures:
            DRAWN[figure](read_study(study), study, PICTURES / f"findings-{study.name}-{figure}.svg")
    if options.store == ACCEPTED:
        for name, text in texts.items():
            put(text, RESULTS, f"<!-- {name} -->", "<!-- end -->")
        put(summary(read_study), FINDINGS, "<!-- summary -->", "<!-- end -->")
    for name, text in texts.items():
        print(f"\n{name}\n\n{text}")


if __name__ == "__main__":
    main()
