"""What a leaderboard answers first: its main tables, who leads in words, and how to see what else there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from xmcbench.reporting.rows import About, Group, Leaderboard, Row, cell, grouped
from xmcbench.reporting.words import enumeration, number


def main_tables(groups: Sequence[Group]) -> list[Group]:
    """One table for each dataset and source: that of the budget with most of the user's rows, else with most methods.

    `groups` are in the order of a leaderboard: the budget at which most methods are compared comes first. A row that no
    budget limits is in every table, and speaks for none.
    """

    def own(group: Group) -> int:
        return sum(not row.accepted and not row.unlimited for row in group.rows)

    tables = grouped(groups, lambda group: (group.dataset, group.dataset_hash, group.source)).values()
    return [max(same, key=own) for same in tables]


def closing(group: Group) -> str:
    """Who leads a table, who ties with it by the one rule for differences, and by how much the next is behind."""
    ranked = sorted((row for row in group.rows if row.rank is not None), key=lambda row: row.rank or 0)
    if not ranked:
        return f"No row is ranked: {enumeration([f'{n} {status}' for status, n in _states(group.rows).items()])}."
    metric, (best, *others) = group.sort, ranked
    alone = [row for row in ranked if row.tested and len(row.keys) == 1]
    once = len(alone) == len(ranked)  # what holds for all rows is said once

    def name(row: Row) -> str:
        kind = row.kind if row.kind and row.kind not in row.label else ""
        about = ", ".join(filter(None, (kind, "one seed" if row in alone and not once else "")))
        return f"{row.label} ({about})" if about else row.label

    most = "lowest" if metric in group.lower_is_better else "highest"
    leads = f"{name(best)} has the {most} {metric}, {cell(best, metric)}"
    if not others:
        return f"{leads}; no other row is ranked."
    if group.source == "published":
        return f"{leads}; {name(others[0])} is {_behind(best, others[0], metric)} behind, as papers print them."
    if metric not in best.tested:
        return f"{leads}; {name(others[0])} is {_behind(best, others[0], metric)} behind; differences were not tested."
    tied = [row for row in others if metric in row.tied]
    others = [row for row in others if metric not in row.tied]
    sentence = leads
    if tied:
        sentence += f"; {enumeration([name(row) for row in tied])} {'tie' if len(tied) > 1 else 'ties'} with it"
    if others:
        first = others[0]
        how = "" if metric in first.tested else ", a difference that was not tested"
        sentence += f"; the next, {name(first)}, is {_behind(best, first, metric)} behind{how}"
    return f"{sentence}." + (" Each has one seed, so another training run may rank them differently." if once else "")


def _states(rows: Sequence[Row]) -> Counter[str]:
    """The number of rows by their status; a scored row that is not ranked is not comparable."""
    return Counter("not comparable" if row.status == "ok" else str(row.status) for row in rows)


def _behind(best: Row, other: Row, metric: str) -> str:
    return f"{100 * (best.worth(metric) - other.worth(metric)):.1f}"


def what_else(board: Leaderboard, shown: Sequence[Group], printed: Collection[About]) -> str:
    """What the tables `shown` leave out of a leaderboard, and the options that show it; empty where it is nothing.

    `printed` are the subjects of the notes that stand below the tables.
    """
    hidden = [group for group in board.groups if group not in shown]
    tracks = {(group.dataset, group.track) for group in shown if group.source == "measured"}
    budgets = [group for group in hidden if group.source == "measured" and (group.dataset, group.track) in tracks]
    other = [group for group in hidden if group.source == "measured" and group not in budgets]
    papers = [group for group in hidden if group.source == "published"]
    folded = sum(len(row.folded) - 1 for group in shown for row in group.rows if row.folded)
    abouts = Counter(note.about for note in board.noted if note.about not in printed)
    claims = abouts.pop(About.CLAIM, 0)
    parts = [
        (len(budgets), "other budget", "--budget all"),
        (len(other), "table of another track", f"--track {other[0].track}" if other else ""),
        (len(papers), "other table of papers", "--source published"),
        (folded, "further row", "--all"),
        (claims, "claim", "--claims"),
        (sum(abouts.values()), "note", "--notes"),
    ]
    said = [f"{_several(count, noun)} ({option})" for count, noun, option in parts if count]
    return f"Also: {', '.join(said)}." if said else ""


def _several(count: int, noun: str) -> str:
    head, of, tail = noun.partition(" of ")
    return f"{number(count, head)}{of}{tail}"
