"""The sentences that facts of a trial are shown in, each made here and nowhere else.

Some say what a record tells of itself: parts of its method that never ran, and why it may be no better than `popular`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from xmcbench.errors import XMCBenchError
from xmcbench.reporting.rows import MARGIN, Reproduced, Uneven
from xmcbench.trial.facts import Choice, ChosenBy, Ended, why_ended
from xmcbench.trial.record import FEW_STEPS, SCORED, SMALLEST_BATCH, Record

FELL, ROSE = 0.7, 1.1  # of a curve: its end to its peak, its end to the evaluation before
COLLAPSED = 0.02  # the best metric of an encoder that maps all texts to one point
MUCH_UNANSWERED = 0.01  # share of a teacher's replies without an answer that is worth a note


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


def idle_parts(record: Record) -> tuple[str, ...]:
    """The parts of the method that never ran; empty also for a method that is not installed, or of another version."""
    if record.status not in SCORED:
        return ()
    from xmcbench.trial.method import build_method  # imports numpy

    try:
        return tuple(build_method(record.trial).idle_parts(record.spent))
    except (XMCBenchError, ValidationError):
        return ()


def few_steps(record: Record) -> str:
    """That a training has hardly begun, and what would help; empty for one that has."""
    steps, tokens = record.spent.get("steps", 0), record.spent.get("encoder_tokens", 0)
    if not 0 < steps < FEW_STEPS:
        return ""
    passes = tokens - steps * record.spent.get("largest_step", {}).get("encoder_tokens", tokens)  # at least
    if passes > tokens / 2:
        return f"{steps} steps, as passes over all texts took {passes / tokens:.0%} of the tokens: raise the budget"
    batch = record.trial.config.get("batch_size")  # in a record of others anything
    lower = "lower batch_size or " if isinstance(batch, int) and batch > SMALLEST_BATCH else ""
    return f"{steps} steps: {lower}raise the budget"


def unanswered(record: Record) -> str:
    """How many of the teacher's replies hold no answer, and of which kind; empty for a few."""
    spent = record.spent
    calls, silent = spent.get("teacher_calls", 0), spent.get("teacher_unparsed", 0)
    if not calls or silent / calls < MUCH_UNANSWERED:
        return ""
    kinds = {"cut": "cut at their limit of tokens", "refused": "refused"}
    counts = [f"{count:,} {text}" for name, text in kinds.items() if (count := spent.get(f"teacher_{name}", 0))]
    reasons = f" ({', '.join(counts)})" if counts else ""
    return f"{silent / calls:.0%} of {calls:,} replies of its teacher hold no answer{reasons}"


def alike_texts(record: Record) -> str:
    """That the encoder does not tell texts apart, and what would help; empty where it does."""
    if not (share := record.spent.get("alike_texts", 0.0)):
        return ""
    return (
        f"{share:.0%} of the queries or of the labels look like another one to the encoder: try `encoder: {{name: "
        "static, words: random}`, or a method with a vector for each label (ova, prime, unidec)"
    )


def what_is_wrong(record: Record) -> str:
    """What most likely keeps a trained method at the level of the most frequent labels, by the record's own figures."""
    config, rate = record.trial.config, record.trial.config.get("learning_rate")
    if few := few_steps(record):
        return few
    if record.metrics and max(record.metrics.values()) < COLLAPSED:
        return f"its embeddings have collapsed, or learning_rate {rate} is far too high"
    metric = record.trial.selection.metric if record.trial.selection else ""
    values = [point[metric] for point in record.curve if metric in point]
    if record.is_lower(metric):
        values = [1 - value for value in values]
    if values and values[-1] < FELL * max(values):
        return f"{metric} fell from {max(values):.3f} to {values[-1]:.3f}: lower learning_rate ({rate})"
    if len(values) > 1 and values[-1] > ROSE * values[-2]:
        return f"{metric} still rose when the budget ended: raise it, or learning_rate ({rate})"
    unsuited = f"learning_rate {rate} does not suit batches of {config.get('batch_size')}: `xmcbench tune` searches it"
    return alike_texts(record) or unsuited
