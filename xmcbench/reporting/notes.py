"""The marks after a name or a value, and the notes below a leaderboard that explain them, units and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from xmcbench.reporting.paper_rows import Claim
from xmcbench.reporting.rows import About, Group, Note, Reproduced, Row, Uneven
from xmcbench.reporting.text_table import Value
from xmcbench.reporting.words import again_text, number, unevenness
from xmcbench.trial.record import METRIC_VERSION, Status

TIE = "≈"  # after a value: not significantly different from the best of its column
ONE_SEED = "¹"  # after an interval: it is over test queries alone
MISPRINT = "†"  # after a value: the paper misprints it
OLDER = "‡"  # after a name: a result of older code
CODES = "§"  # after a name: its trials may have been trained by several codes
BELOW_POPULAR = "↓"  # after a name: trained, yet not better than the most frequent labels
POPULAR = "popular"  # the method that predicts those: a trained method should be better
BASELINES = (POPULAR, "tfidf-nn", "tfidf-label")  # methods that train nothing: a trained row far below is a failure
FAR = 0.5  # of a baseline's metric
UNBOUNDED = "◇"  # after a name: it is trained, and its budget limits nothing of that
STATED = "□"  # after a name: nobody has recomputed its metrics
VERIFIED, NOT_REPRODUCED = "✓", "✗"  # after a name: what came of training it again
IDLE = "∅"  # after a name: a part of the method never ran
LOWER = " (min)"  # after a metric in a heading: its lowest value is the best
CLAIM = "○"  # after a name: a paper's claim that this row is better than another was looked at here
# Of every record: what the check of submissions can tell, and what it cannot.
CHECKED = (
    "The check of submissions recomputes metrics and intervals, and compares steps, tokens and operations with a plan "
    "(refused below half of it, above ten times). Nothing else is checked: seconds, memory, curves, "
    "settings, seeds, tuning, hardware."
)


# What a mark means, in a few words.
MEANINGS = {
    TIE: "not significantly different from the best",
    ONE_SEED: "one seed",
    MISPRINT: "misprint",
    OLDER: "older code",
    CODES: "perhaps of several codes",
    BELOW_POPULAR: "not better than the most frequent labels",
    UNBOUNDED: "its training is not limited by the budget",
    STATED: "not recomputed",
    VERIFIED: "trained again with an equivalent result",
    NOT_REPRODUCED: "trained again, not reproduced",
    IDLE: "a part of the method never ran",
    CLAIM: "a paper's claim about it was tested",
}
EVERY = frozenset(MEANINGS)


@dataclass(frozen=True)
class Surface:
    """Where notes are shown: what is called differently there."""

    every_row: str
    interval: str


TERMINAL = Surface("--all", "95 %: half the width of")
PAGE = Surface("“every printed row”", "Small print below a value:")


def reading(text: str) -> Note:
    """A note on how to read the tables."""
    return Note(About.READING, text)


def of_row(row: Row, text: str) -> Note:
    """A note on what happened to a row: of an accepted one it is no news to the user."""
    return Note(About.ACCEPTED if row.accepted else About.ROW, text)


def is_below_popular(row: Row, others: Iterable[Row], metric: str) -> bool:
    """Whether a trained row could be, and is not, better than the most frequent labels, which some of `others` are."""
    popular = [other.worth(metric) for other in others if other.plugin == POPULAR]
    value, perfect = row.worth(metric), 0 if row.worth(metric) < 0 else 1
    return bool(row.facts.get("steps") and popular) and value <= max(popular) and value != perfect


def is_unbounded(facts: Mapping[str, Value]) -> bool:
    """Whether a row that no budget limits was trained: it took steps, or its operations are above 0 or not known."""
    return bool(facts.get("steps")) or facts.get("flops") != 0


def of_name(row: Row) -> str:
    """The marks after the row's name."""
    marks = (
        OLDER * bool(row.older)
        + CODES * bool(row.codes)
        + BELOW_POPULAR * row.below_popular
        + UNBOUNDED * row.unbounded
    )
    return marks + STATED * row.stated + again_mark(row) + IDLE * bool(row.idle) + of_claims(row.claims)


def again_mark(row: Row) -> str:
    """The mark of what came of training it again; empty where nobody did."""
    if row.reproduced is None:
        return ""
    return NOT_REPRODUCED if row.reproduced is Reproduced.NOT else VERIFIED


def of_interval(row: Row) -> str:
    """The mark after the row's intervals."""
    return ONE_SEED if len(row.keys) == 1 else ""


def of_value(row: Row, metric: str) -> str:
    """The marks after the row's value of a metric."""
    return MISPRINT * (metric in row.misprints) + TIE * (metric in row.tied)


def of_claims(claims: Sequence[Claim]) -> str:
    """A mark that says nothing of what was found: that is no verdict on the paper's figures."""
    return CLAIM * bool(claims)


def legend(groups: Sequence[Group]) -> str:
    """The meanings of the marks in the groups' tables, in one line; empty where there are none."""
    rows = [row for group in groups for row in group.rows]
    shown = "".join(
        [*map(of_name, rows), *map(of_interval, (row for row in rows if row.intervals))]
        + [of_value(row, metric) for group in groups for row in group.rows for metric in group.metrics]
        + [of_claims(row.folded_claims) for group in groups if "variants" in group.columns for row in group.rows]
    )
    return "; ".join(f"{mark} {meaning}" for mark, meaning in MEANINGS.items() if mark in shown)


Rule = Callable[[Sequence[Row], Collection[str]], Iterator[Note]]  # notes on measured rows in tables with these columns


def _once(applies: Callable[[Row], object], text: str) -> Rule:
    """One note on how to read the tables, if it applies to any row."""
    return lambda rows, _: iter([reading(text)] if any(map(applies, rows)) else [])


def _each(applies: Callable[[Row], object], text: Callable[[Row], str]) -> Rule:
    """A note for each row that it applies to."""
    return lambda rows, _: (of_row(row, text(row)) for row in rows if applies(row))


def _labels(rows: Iterable[Row]) -> str:
    return ", ".join(row.label for row in rows)


def _checkpoints(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    splits = Counter(str(row.facts.get("selection_split")) for row in rows if row.metrics)
    if set(splits) - {"none"}:
        chosen = "; ".join(f"{name} ({number(n, 'row')})" for name, n in sorted(splits.items()))
        yield reading(f"Checkpoints chosen on: {chosen}.")


def _trained_otherwise(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    for uneven in Uneven:
        if some := [row for row in rows if uneven in row.uneven]:
            yield of_row(some[0], f"{unevenness(uneven)}: {_labels(some)}.")


def _hidden_seconds(rows: Sequence[Row], columns: Collection[str]) -> Iterator[Note]:
    if columns and any(row.facts.get("side_by_side") for row in rows):  # a paper's table shows no costs
        yield reading("No seconds are shown for trials that ran side by side (`--columns side_by_side`).")


def _clocks(rows: Sequence[Row], columns: Collection[str]) -> Iterator[Note]:
    clocks = Counter(str(row.facts["clock"]) for row in rows if "clock" in row.facts)
    if len(clocks) > 1 and "device_seconds" in columns:
        walls = "are by the wall clock, the others of processors (`--columns clock`)."
        yield reading(f"Seconds of {number(clocks['wall'], 'row')} {walls}")


def _redefined(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    old = [row for row in rows if row.metrics and not row.defined_as_now]
    if not old:
        return
    versions = sorted({row.metric_version for row in old} - {METRIC_VERSION})
    which = [f"version {', '.join(map(str, versions))}, now {METRIC_VERSION}"] if versions else []
    if names := dict.fromkeys(name for row in old for name in row.redefined):
        which.append(f"other code of {', '.join(names)}")
    named = f"{_labels(old)} ({'; '.join(which)})"
    text = f"Not ranked, because of other metric definitions: {named}. `xmcbench rescore` computes them again."
    yield Note(About.ROW, text)


def _older(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    if reasons := sorted({row.older for row in rows if row.older}):
        text = f"{OLDER}: a result of older code ({'; '.join(reasons)}); `xmcbench run` trains it again."
        yield Note(About.ROW, text)


def _alike(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    for alike in dict.fromkeys(row.alike for row in rows if row.alike):
        those = [row for row in rows if row.alike == alike]
        yield of_row(those[0], f"{_labels(those)}: {alike}.")


def _all_zero(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    if nothing := [row for row in rows if row.metrics and not any(row.metrics.values())]:
        text = (
            "every metric is 0, because no predicted label is true. Methods that match words need words that texts "
            "share, with spaces between them."
        )
        yield of_row(nothing[0], f"{_labels(nothing)}: {text}")


def _trained_again(rows: Sequence[Row], _: Collection[str]) -> Iterator[Note]:
    for state in Reproduced:
        if some := [row for row in rows if row.reproduced is state]:
            yield reading(f"{again_mark(some[0])} {again_text(state)}: {_labels(some)}.")


# The notes on measured rows, in the order in which they are printed.
ON_MEASURED: tuple[Rule, ...] = (
    _checkpoints,
    _trained_otherwise,
    _once(
        lambda row: row.status == Status.OVER_BUDGET,
        "over_budget: exceeded the budget by more than one step; not ranked.",
    ),
    _hidden_seconds,
    _clocks,
    _once(
        lambda row: row.facts.get("simulated_teacher"),
        "Trials with a teacher that was simulated from annotations are not ranked on the zero-shot track.",
    ),
    _redefined,
    _older,
    _each(
        lambda row: row.codes,
        lambda row: (
            f"{CODES} {row.label}: its {number(len(row.keys), 'trial')} noted {row.codes} digests of the method's code "
            "in an older form, which comments changed too: whether one code trained all of them is not known."
        ),
    ),
    _once(
        lambda row: row.below_popular,
        f"{BELOW_POPULAR}: trained, yet not better than predicting the most frequent labels (popular).",
    ),
    _each(lambda row: row.below_popular, lambda row: f"{BELOW_POPULAR} {row.label}: most likely {row.wrong}."),
    _once(lambda row: row.idle, f"{IDLE}: a part of the method never ran."),
    _each(lambda row: row.idle, lambda row: f"{IDLE} {row.label}: never ran: {', '.join(row.idle)}."),
    _each(
        lambda row: row.few_steps and not row.below_popular,
        lambda row: f"Few steps: {row.label}: {row.few_steps}.",
    ),
    _alike,
    _each(lambda row: row.unanswered, lambda row: f"{row.label}: {row.unanswered}."),
    _all_zero,
    _once(
        lambda row: row.unbounded,
        f"{UNBOUNDED}: trained, but not limited by this budget, because the budget counts nothing of what the method, "
        "or its linear solver, spends.",
    ),
    _once(
        lambda row: row.unlimited and not row.unbounded,
        "Rows whose steps and operations are 0 train nothing, so a budget does not limit them either.",
    ),
    _once(lambda row: row.accepted, CHECKED),
    _once(
        lambda row: row.stated,
        f"{STATED}: not recomputed: its predictions are not here, or its dataset is unknown here.",
    ),
    _trained_again,
    _each(lambda row: row.problem, lambda row: f"{row.label}: {row.status}: {shorten(row.problem, 160)}"),
)


def notes_of(groups: Sequence[Group], surface: Surface = TERMINAL) -> tuple[Note, ...]:
    """The notes that a reader of the groups needs, in the words of a surface."""
    return tuple(dict.fromkeys(_notes(groups, surface))) if any(group.rows for group in groups) else ()


def _notes(groups: Sequence[Group], surface: Surface) -> Iterator[Note]:
    rows = [row for group in groups for row in group.rows]
    measured = [row for row in rows if row.source != "published"]
    columns = {name for group in groups for name in group.columns}
    sorts = " or ".join(dict.fromkeys(group.sort for group in groups))
    yield reading(
        f"Metrics are in per cent. Rows are ranked by {sorts} within each table, and equal values share a rank."
    )
    if lower := dict.fromkeys(name for group in groups for name in group.metrics if name in group.lower_is_better):
        yield reading(f"(min): the lowest value is the best ({', '.join(lower)}).")
    if published := [row for row in rows if row.source == "published"]:
        yield from _published_notes(
            published, dict.fromkeys(name for group in groups for name in group.metrics), columns, surface
        )
    yield from _how_to_read(measured, columns, surface)
    for rule in ON_MEASURED:
        yield from rule(measured, columns)
    for group in groups:
        yield from _far_below(group)
        yield from _on_data(group)
    if left_out := sum(group.left_out for group in groups):
        yield reading(f"{left_out} further rows are not shown (--top).")


def _how_to_read(rows: Sequence[Row], columns: Container[str], surface: Surface) -> Iterator[Note]:
    """The notes on values of measured rows: their intervals, deviations and what folds into them."""
    if any(row.source == "imported" for row in rows):
        yield reading("Imported predictions were made elsewhere, at unknown cost, so they are ranked separately.")
    if intervals := [row for row in rows if row.intervals]:
        yield reading(
            f"{surface.interval} the interval over test queries and seeds. "
            "≈: not significantly different from the best of its column (paired, 95 %, Holm over its rows)."
        )
        if any(map(of_interval, intervals)):
            alone = "the interval and ≈ cover test queries alone, not another training run"
            yield reading(f"{ONE_SEED}: one seed, so {alone}.")
    if any(row.std for row in rows):
        yield reading("sd: standard deviation over seeds (n - 1) × number of seeds.")
    if any(row.against for row in rows):
        yield reading("against: the value minus the published one of the same method, encoder, batch size and setting.")
    if "variants" in columns and any("variants" in row.facts for row in rows):
        yield reading(f"+N: further rows of the method (ablations, other settings); {surface.every_row} shows them.")


def _far_below(group: Group) -> Iterator[Note]:
    """The notes on trained rows that reach a part of what a baseline of the same table does."""

    def share(row: Row) -> float:
        return row.worth(group.sort) if group.sort not in group.lower_is_better else 1 + row.worth(group.sort)

    ranked = [row for row in group.rows if row.rank]
    best = max((row for row in ranked if row.plugin in BASELINES), key=share, default=None)
    for row in ranked if best is not None else ():
        if best and row.facts.get("steps") and not row.below_popular and share(row) < FAR * share(best):
            values = " and ".join(f"{100 * one.metrics[group.sort]:.1f}" for one in (row, best))
            text = f"{row.label}: far below {best.label}, which trains nothing ({group.sort} {values})"
            yield of_row(row, f"{text}: most likely {row.wrong}.")


def _on_data(group: Group) -> Iterator[Note]:
    """The notes on texts that a group's dataset repeats."""
    if shared := max((int(row.facts.get("shared_texts", 0)) for row in group.rows), default=0):
        text = "test texts are also in the training part, where their labels are known."
        yield Note(About.DATA, f"{group.dataset}: {shared:,} {text}")
    if alike := max((int(row.facts.get("shared_label_texts", 0)) for row in group.rows), default=0):
        text = "labels share their text with another one; a method that reads label texts cannot tell them apart."
        yield Note(About.DATA, f"{group.dataset}: {alike:,} {text}")


def _published_notes(
    rows: Sequence[Row], metrics: Iterable[str], columns: Container[str], surface: Surface
) -> Iterator[Note]:
    yield reading(
        "Published values are as printed, in the settings of the papers. They are never ranked with measured ones."
    )
    if "variants" in columns and any("variants" in row.facts for row in rows):
        yield reading(
            "+N: further results of the method (ablations, costs, differing reprints); "
            f"{surface.every_row} shows every printed row."
        )
    for row in rows:
        for metric, text in row.misprints.items():
            yield Note(About.PAPERS, f"†: {row.label}, {metric} ({row.facts['paper']}): misprint, {text}.")
    for split in dict.fromkeys(str(row.facts["split"]) for row in rows if "split" in row.facts):
        methods = ", ".join(dict.fromkeys(row.method for row in rows if row.facts.get("split") == split))
        yield Note(About.PAPERS, f"These are on another test split ({split}) and not ranked: {methods}.")
    if claims := dict.fromkeys(claim for row in rows for claim in (*row.claims, *row.folded_claims)):
        text = (
            f"{CLAIM}: a paper's claim that this row, or one folded into it, was tested here, at the "
            "scale in brackets; that is no verdict on the paper's figures unless the scale is the paper's."
        )
        yield reading(text)
    yield from (Note(About.CLAIM, f"{CLAIM} {claim}.") for claim in claims)
    for row in rows:
        if differing := [f"{name} {row.disagreements[name]}" for name in metrics if name in row.disagreements]:
            name = f"{row.label} ({row.kind})" if row.kind else row.label
            yield Note(About.PAPERS, f"Papers disagree on {name}: {', '.join(differing)}.")
