"""Words of comparison that accepted records bear out, and the formats of numbers, for the templates of documents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from studies import Board, Gap, Method

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.significance import Relation
from xmcbench.reporting.words import enumeration

TWICE = 2.0  # times the budget of a training that may show that a shorter one has converged
WEAK = 0.7  # rank correlations up to here are called weak

# The words of comparison, and what the records must say of two methods for each.
WORDS: dict[str, Relation] = {
    word: relation
    for relation, words in {
        Relation.ABOVE: "above beat beats better exceed exceeds gain gains higher lead leads more outperforms",
        Relation.BELOW: "below fewer less lose loses lower trail trails worse",
        Relation.EQUAL: "equal equals ties",
        Relation.UNDECIDED: "undecided inconclusive inconclusively",
    }.items()
    for word in words.split()
}
SUPERLATIVES = ("best", "worst", "highest", "lowest")  # said by `best`
ENDS = ("converge", "converges", "converged", "flat", "plateau", "plateaus", "saturates", "saturated")  # by `converged`
NUMERALS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand|million|half|third|quarter|fifth"
    "|eighth|tenth|twice|double"
)
SMALL = ("no", "one", *NUMERALS.split("|")[:11])


def relation_of(phrase: str) -> Relation:
    """What a phrase says of two methods. Raises `XMCBenchError` where it has no word of comparison, or several."""
    found = {WORDS[word] for word in re.findall(r"[a-z]+", phrase.lower()) if word in WORDS}
    if len(found) != 1 or "not" in phrase.split():
        raise XMCBenchError(f"{phrase!r}: expected one word of comparison and no 'not': {', '.join(WORDS)}")
    return found.pop()


def says(gap: Gap, *phrases: str) -> str:
    """The first phrase that the records bear out; an equality has its margin. Raises where there is none."""
    by_relation = {relation_of(phrase): phrase for phrase in reversed(phrases)}
    if gap.relation not in by_relation:
        raise XMCBenchError(f"{gap.told}, which is {gap.relation}: not {' or '.join(map(repr, phrases))}")
    phrase = by_relation[gap.relation]
    return f"{phrase} (within {gap.margin} points)" if gap.relation is Relation.EQUAL else phrase


def converged(longer: Method, shorter: Method, metric: str) -> str:
    """Whether a training has converged by a metric: one of `TWICE` the budget changes it by less than `EQUAL`.

    Raises `XMCBenchError` where the longer training has less than that.
    """
    limits, others = (own.records[0].trial.budget.spending() for own in (shorter, longer))
    times = min(others.get(name, inf) / limit for name, limit in limits.items())
    if times < TWICE:
        raise XMCBenchError(f"{longer.label} has {times:.3g} times the budget of {shorter.label}, expected {TWICE}")
    gap = longer.over(shorter, metric)
    if gap.relation is Relation.EQUAL:
        return f"has converged by {metric}: {times:g} times the budget changes it by less than {gap.margin} points"
    how = "has not converged" if gap.significant else "has not been shown to converge"
    return f"{how} by {metric}: {times:g} times the budget changes it by {gap} points"


def best(row: Method, phrase: str, metric: str, *groups: str) -> str:
    """The phrase, where the row has the highest mean of its study or of groups of it. Raises where another one has."""
    if (other := row.board.best(metric, *groups)) is not row:
        where = f"{row.board.study.name}{''.join(f', {group}' for group in groups)}"
        raise XMCBenchError(
            f"{other.label} has the highest {metric} ({where}), {row.label} {row[metric]}: not {phrase!r}"
        )
    return phrase


def correlations(boards: Iterable[Board], first: str, second: str) -> str:
    """Spearman's rank correlation of two metrics over the methods of each dataset."""
    return joined(f"{own.correlation(first, second):+.2f} on {own.study.place}" for own in boards)


def clauses(gaps: Sequence[Gap], *phrases: str) -> str:
    """A clause for each relation that occurs, with the datasets and by how much; the phrases are as those of `says`.

    As in "beats it on records and packages (by 2.0 and 1.1 points) and equals it on titles (within 0.26)".
    """
    by_relation = {relation_of(phrase): phrase for phrase in reversed(phrases)}
    found: defaultdict[Relation, list[Gap]] = defaultdict(list)
    for gap in gaps:
        if gap.relation not in by_relation:
            raise XMCBenchError(f"{gap.told}, which is {gap.relation}: not {' or '.join(map(repr, phrases))}")
        found[gap.relation].append(gap)
    texts = []
    for relation, phrase in ((relation_of(phrase), phrase) for phrase in phrases):
        if own := found.pop(relation, []):
            values = {
                Relation.EQUAL: ("within ", [gap.margin for gap in own], " points"),
                Relation.UNDECIDED: ("", [str(gap) for gap in own], " points"),
            }.get(relation, ("by ", [gap.points for gap in own], " points"))
            places = everywhere([gap.place for gap in own], len(gaps))
            texts.append(f"{phrase} on {places} ({values[0]}{joined(values[1])}{values[2]})")
    return joined(texts)


def throughout(boards: Sequence[Board], own: str, rival: str, metric: str, *phrases: str) -> str:
    """The phrase that the records bear out on every dataset alike; raises where there is none."""
    told = [says(board[own].over(rival, metric), *phrases) for board in boards]
    if len(set(told)) > 1:
        raise XMCBenchError(f"{own} over {rival} by {metric}: {joined(dict.fromkeys(told))}, not the same everywhere")
    return told[0]


def everywhere(places: Sequence[str], of: int) -> str:
    """Places in a sentence."""
    return f"all {word(of)} datasets" if len(places) == of > 2 else joined(places)


def weak(boards: Sequence[Board], phrase: str, first: str, second: str) -> str:
    """The phrase, where the ranks of two metrics agree weakly on every dataset. Raises where they do not."""
    for board in boards:
        if board.correlation(first, second) > WEAK:
            raise XMCBenchError(f"the ranks by {first} and {second} agree on {board.study.place}: not {phrase!r}")
    return phrase


# Formats ------------------------------------------------------------------------------------------------------------


def joined(texts: Iterable[object]) -> str:
    """In a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    named = list(map(str, texts))
    return enumeration(named, len(named)) if named else ""


def word(number: float) -> str:
    """A small number in words.

    >>> word(3), word(30)
    ('three', '30')
    """
    whole = int(number)
    return SMALL[whole] if whole == number < len(SMALL) else f"{number:,g}"


def thousands(number: float) -> str:
    """A count with separators."""
    return f"{number:,.0f}"


def amount(number: float) -> str:
    """A number of operations, as in 4 × 10¹²."""
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return (
        f"{mantissa.removesuffix('.0')} × 10{str(int(exponent)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    )


def percent(share: float, digits: int = 0) -> str:
    """A share in per cent."""
    return f"{100 * share:.{digits}f} %"


def points(share: float, digits: int = 1) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * share:+.{digits}f}"


FORMATS: dict[str, Callable[[Any], str]] = {own.__name__: own for own in (word, thousands, amount, percent, points)}


def spread(values: Iterable[Any], form: str = "word") -> str:
    """The least and the highest of some values, or the one that all are.

    >>> spread([3, 2, 5]), spread([0.1, 0.1], "percent")
    ('two to five', '10 %')
    """
    told = FORMATS[form]
    low, *_, high = ordered if len(ordered := sorted(values)) > 1 else ordered * 2
    return told(low) if told(low) == told(high) else f"{told(low)} to {told(high)}"


def cut(metric: str) -> int:
    """The k of a metric, as in P@5."""
    return int(metric.partition("@")[2])
