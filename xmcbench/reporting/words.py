"""The sentences that facts of a trial are shown in, each made here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from xmcbench.reporting.rows import MARGIN, Reproduced, Uneven
from xmcbench.trial.facts import Choice, ChosenBy, Ended, why_ended
from xmcbench.trial.record import Record


def chosen_on(choice: Choice) -> str:
    """What the checkpoint, or the rule of a fusion, was chosen on.

    >>> chosen_on(Choice(by=ChosenBy.HELD_OUT, queries=300)), chosen_on(Choice())
    ('train: 300 queries held out', 'none')
    """
    return {
        ChosenBy.NOTHING: "none",
        ChosenBy.HELD_OUT: f"train: {choice.queries} queries held out",
        ChosenBy.TEACHER: f"teacher: the best label of {choice.queries} training documents",
        ChosenBy.METHOD: choice.way,
        ChosenBy.UNKNOWN: "unknown",
    }[choice.by]


def unevenness(uneven: Uneven) -> str:
    """How rows were trained otherwise than others in their table."""
    return {
        Uneven.ALL_QUERIES: "Trained on all training queries, while others here held some out",
        Uneven.LAST_WEIGHTS: "Held out queries as others did, but chose no checkpoint by them: the last weights count",
        Uneven.NOT_TUNED: "Not tuned, as others here were",
        Uneven.WHOLE_SAMPLES: "Each sample of its tuning was a whole training, while those of others were a part",
        Uneven.SINGLE_WORDS: "Reads single words, no sequences of words or of characters (`ngrams`, `characters`)",
    }[uneven]


def again_text(state: Reproduced) -> str:
    """What came of training an accepted result again."""
    return {
        Reproduced.VERIFIED: f"Verified: runs with fresh seeds are within {MARGIN:g} point of it in every metric",
        Reproduced.RETRAINED: f"Retrained: a run with its own seed is within {MARGIN:g} point of it, at the same cost",
        Reproduced.NOT: f"Not reproduced: runs of the maintainers are not shown to be within {MARGIN:g} point of it",
    }[state]


def end_of_training(record: Record) -> str:
    """Why training ended before its budget was spent; empty where no reason is noted."""
    ended, selection = why_ended(record.spent), record.trial.selection
    if ended is None:
        return ""
    metric, patience = (selection.metric, selection.patience) if selection else ("the metric", None)
    return {
        Ended.FLAT: f"{metric} had not risen for {patience or 'several'} evaluations",
        Ended.PASS_TOO_LARGE: "a pass over the data did not fit into what was left of the budget",
        Ended.STAGE_TOO_LARGE: "the next stage did not fit into the budget and learnt nothing",
    }[ended]


def number(count: float, noun: str) -> str:
    """A count with its noun, in the plural where it is not one.

    >>> number(1, "epoch"), number(1200, "row"), number(0.5, "epoch")
    ('1 epoch', '1,200 rows', '0.5 epochs')
    """
    return f"{count:,.10g} {noun}" + ("" if count == 1 else "s")


def enumeration(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence; of more than `most` the first, and how many more there are.

    >>> enumeration(["a"]), enumeration(["a", "b", "c"]), enumeration(["a", "b", "c"], 2)
    ('a', 'a, b and c', 'a, b and 1 more')
    """
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
