"""The tables of docs/findings.md, docs/results.md and docs/budgets.md, from the methods of a study (`studies.py`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean

from studies import ALONG, LATE, METRICS, Board, Boards, Method, half

from xmcbench.evaluation.significance import Relation, rank_intervals
from xmcbench.reporting.text_table import format_value
from xmcbench.suite.tables import RANKS

SUMMARISED = (RANKS, "PSP@5")  # in the table of all datasets
COMPARED = ("P@1", "P@5")
SHARES = (0.1, 0.3, 1.0)  # of the budget
CHANGE = 0.9  # of the budget: how ranks change when it changes by 10 %
# The rows of the README: a kind of method each, and none that results on test queries suggested.
HEADLINE = ("sparse-ranker", "parabel", "rae-in-batch", "rae", "dexml-hard", "dexml-all", "tfidf-neighbours")
RIVALS = ("linear programs", "text matching")
OLDER = "†"  # a result of older code


def written(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def marked(method: Method) -> str:
    """Its label, with its seeds where they are not as many as usual, and a mark where its trials are of older code."""
    usual = method.board.usual_seeds
    seeds = "" if method.seeds == usual else f" ({method.seeds} seed{'s' if method.seeds > 1 else ''})"
    return f"{method.label}{seeds}{f' {OLDER}' if method.older else ''}"


def words_read(board: Board) -> str:
    """Which texts the linear programs read: single words, or sequences of them too."""
    by_length: defaultdict[int, list[str]] = defaultdict(list)
    for method in board.group("linear programs"):
        by_length[int(method.setting("ngrams"))].append(method.name)
    texts = [
        f"{', '.join(names)}: {'single words' if length == 1 else f'words and sequences of up to {length}'}"
        for length, names in sorted(by_length.items())
    ]
    return f"What linear programs count: {'; '.join(texts)}."


def late_rise(method: Method) -> str:
    """What quality on held-out queries gains over the last part of its training, in points."""
    rise = method.rise(LATE)
    return "-" if rise is None else f"{100 * rise:+.1f}"


def operations(method: Method) -> str:
    return format_value(method.operations, "count") if method.operations else "-"


def table(board: Board) -> str:
    """A row for each method; a rank interval holds together with all others at 95 %."""
    ranks = rank_intervals([method.samples[RANKS] for method in board])
    rows = []
    for (low, high), method in zip(ranks, board, strict=True):
        cells = [f"{low}" if low == high else f"{low} to {high}", marked(method)]
        cells += [f"{method[metric]} ±{100 * half(method.sample(metric)):.1f}" for metric in METRICS]
        queries = fmean(record.spent["predicted_queries"] for record in method.records)
        cells += [
            operations(method),
            f"{100 * method.share:.0f} %" if method.operations else "-",
            format_value(method.spent("peak_bytes"), "bytes"),
            f"{1000 * method.spent('predict_cpu_seconds') / queries:.2f}" if queries else "-",
            late_rise(method),
        ]
        rows.append(cells)
    spent = ("operations", "of the budget", "memory", "ms a query", "late rise")
    return written((f"rank by {RANKS}", "method", *METRICS, *spent), rows)


def rivals(board: Board) -> str:
    """How far every trained method is above the best linear program and the best matching of texts, by each metric.

    Bold: significant.
    """
    columns = [(board.best(metric, group), metric) for group in RIVALS for metric in COMPARED]
    rows = []
    for method in (own for own in board if own.trained):
        gaps = [method.over(rival, metric) for rival, metric in columns]
        rows.append([method.label, *(f"**{gap}**" if gap.significant else str(gap) for gap in gaps)])
    return written(["method", *(f"{metric} over {rival.label}" for rival, metric in columns)], rows)


def along(board: Board) -> str:
    """Quality on held-out queries at shares of the budget, and the rank among trained methods."""
    rows = [method for method in board if method.trained]
    orders = {share: sorted(rows, key=lambda one: -one.at(share)) for share in SHARES}
    cells = []
    for method in orders[1.0]:
        places = [(method.at(share), orders[share].index(method) + 1) for share in SHARES]
        cells.append([method.label, *(f"{100 * own:.1f} ({rank})" if own else "-" for own, rank in places)])
    return written(["method", *(f"{100 * share:g} %" for share in SHARES)], cells)


def listed(board: Board, *metrics: str) -> str:
    """A row for each method by its label: steps, metrics of test queries, and quality along the budget."""
    rows = []
    for method in sorted(board, key=lambda own: own.label):
        values = [f"{100 * own:.1f}" if (own := method.at(share)) else "-" for share in SHARES]
        rows.append([marked(method), f"{method.steps:,}", *(method[metric] for metric in metrics), *values])
    return written(["method", "steps", *metrics, *(f"{ALONG} at {100 * share:g} %" for share in SHARES)], rows)


def heads(first: str, metrics: Sequence[str]) -> str:
    """The head of a table whose rows are of `compared`."""
    return written([first, "data", *metrics, "significant"], ())


def compared(text: str, first: Method, second: Method, metrics: Sequence[str]) -> str:
    """A row: how far a method is above another by some metrics, each with its interval, and what is significant."""
    gaps = [first.over(second, metric) for metric in metrics]
    cells = [f"{gap} ({gap.interval})" for gap in gaps]
    signs = {"higher": Relation.ABOVE, "lower": Relation.BELOW}
    by_sign = {word: [gap.metric for gap in gaps if gap.relation is relation] for word, relation in signs.items()}
    told = "; ".join(f"{word} {', '.join(own)}" for word, own in by_sign.items() if own)
    return written([text, first.board.study.place, *cells, told or "none"], ()).partition("\n")[0]


def under_tracks(boards: Sequence[Board], labels: Sequence[str], metrics: Sequence[str]) -> str:
    """A row for each board, a track of a dataset: some metrics of some methods."""
    rows = []
    for board in boards:
        place, _, track = board.study.place.partition("+")
        rows.append([f"{place}, {track}", *(", ".join(board[label][metric] for metric in metrics) for label in labels)])
    return written(["dataset, track", *labels], rows)


def moved(board: Board, share: float = CHANGE) -> tuple[int, int]:
    """How many ranks by held-out queries change with a smaller budget, and of how many: second stages apart."""
    rows = board.along
    before, after = (sorted(rows, key=lambda one: -one.at(budget)) for budget in (share, 1.0))
    return sum(first is not second for first, second in zip(before, after, strict=True)), len(rows)


def encoders(board: Board, others: Board) -> str:
    """A pair of rows for each method that two encoders were trained with, by the first; then the others."""
    by_label = {method.label: method for method in others}
    both = [(method, by_label.pop(method.label)) for method in board if method.label in by_label]
    rows = []
    for own in (*chain.from_iterable(both), *by_label.values()):
        found = [own[metric] for metric in METRICS]
        rows.append(
            [
                own.label + (f" {OLDER}" if own.older else ""),
                own.records[0].suite,
                str(own.seeds),
                *found,
                operations(own),
                late_rise(own),
            ]
        )
    return written(("method", "suite", "seeds", *METRICS, "operations", "late rise"), rows)


def summary(boards: Boards) -> str:
    """P@5 and PSP@5 of the methods that most datasets have, by their mean share of the best P@5; the best is bold."""
    columns = [(board, metric) for board in boards.main for metric in SUMMARISED]
    values: dict[str, dict[tuple[Board, str], float]] = defaultdict(dict)
    for board, metric in columns:
        for method in board:
            values[method.name][board, metric] = round(100 * method.sample(metric).mean, 1)
    rows = {name: own for name, own in values.items() if len(own) > len(columns) / 2}
    best = {column: max(own.get(column, 0) for own in rows.values()) for column in columns}

    def share(name: str) -> float:
        return fmean(own / best[column] for column, own in rows[name].items() if column[1] == RANKS)

    order = sorted(rows, key=share, reverse=True)
    heads = ["method", *(f"{metric} {board.study.name}" for board, metric in columns)]
    return written(heads, ([name, *(_bold(rows[name].get(own), best[own]) for own in columns)] for name in order))


def headline(boards: Boards) -> str:
    """P@5 and PSP@5 of some methods on every dataset; bold: no method there is significantly above it."""
    columns = [(board, metric) for metric in SUMMARISED for board in boards.main]
    names = {label: own.name for board in boards.main for label in HEADLINE for own in board if own.label == label}
    rows = []
    for label, name in names.items():
        cells = []
        for board, metric in columns:
            best = board.best(metric)
            if label not in board:
                cells.append("-")
                continue
            own = board[label]
            tied = own is best or not own.over(best, metric).significant
            cells.append(f"**{own[metric]}**" if tied else own[metric])
        rows.append([name, *cells])
    return written(["method", *(f"{metric} {board.study.name}" for board, metric in columns)], rows)


def _bold(value: float | None, best: float) -> str:
    return "" if value is None else f"**{value:.1f}**" if value == best else f"{value:.1f}"
