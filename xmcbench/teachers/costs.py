"""What trials will ask of teachers, told before they run: calls, answers that the store holds, tokens and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmcbench.data.extent import Extent
from xmcbench.data.lengths import WORD_PIECES
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.teachers.judges import Known
from xmcbench.teachers.teacher import Teacher
from xmcbench.trial.method import Method, build_method
from xmcbench.trial.trial import Trial

WORD = 2  # tokens of an answer of one word, with what ends it
MILLION = 10**6


class Price(NamedTuple):
    """Money for a million tokens of prompts, and of answers."""

    prompts: float
    answers: float

    @classmethod
    def parse(cls, text: str | None) -> Price | None:
        """The price in a text such as `0.15,0.60`, if one is given. Raises XMCBenchError."""
        if text is None:
            return None
        try:
            prompts, answers = map(float, text.split(","))
        except ValueError:
            prompts = answers = -1.0
        if not (0 <= prompts < np.inf and 0 <= answers < np.inf):
            raise XMCBenchError(
                f"--teacher-price: found {text!r}, expected two prices of a million tokens, of prompts and of answers, "
                "as 0.15,0.60"
            )
        return cls(prompts, answers)


def teachers_of(method: Method) -> list[Teacher]:
    """The teachers that a method's settings name."""
    configs = [value for _, value in method.config if isinstance(value, Teacher.Config)]
    return [registry().thing("teacher", config.name)(config) for config in configs]


def teacher_costs(
    trials: Sequence[Trial], extents: Mapping[str, Extent | None], store: Path, price: Price | None = None
) -> list[str]:
    """A line for each method and dataset whose trials ask a teacher that is not simulated."""
    seeds = Counter((trial.dataset, trial.label) for trial in trials)
    first = {(trial.dataset, trial.label): trial for trial in reversed(trials)}
    lines = []
    for place, trial in reversed(first.items()):
        method, data = build_method(trial), extents.get(trial.dataset)
        if data is None or not (teachers := teachers_of(method)):
            continue
        teacher = teachers[0]
        calls = method.foreseen(data, trial.budget).get("teacher_calls")
        if teacher.simulated or calls == 0:
            continue
        known = registry().thing("judge", teacher.judge).known(store, teacher)
        own_price = price or (Price(*teacher.price) if any(teacher.price) else None)
        if calls is None:
            costs = _of_embeddings(teacher, known, data, own_price)
        else:
            costs = _costs(teacher, int(calls), seeds[place], known, data, own_price)
        lines.append(f"{trial.label} on {trial.dataset}: {costs}")
    return lines


def cost_of_texts(teacher: Teacher, texts: Sequence[str]) -> str:
    """What it costs to have texts embedded, in words, estimated by their number of words."""
    tokens = WORD_PIECES * sum(len(teacher.reads(text).split()) for text in texts)
    money = f", which cost about {tokens * teacher.price[0] / MILLION:,.6f}" if any(teacher.price) else ""
    return f"asks {teacher.title} to embed {len(texts):,} texts: about {tokens:,.0f} tokens{money}"


def _of_embeddings(teacher: Teacher, known: Known, data: Extent, price: Price | None) -> str:
    """What a method asks that does not foresee its questions: about each text, where it embeds all of them."""
    texts = (data.documents or data.queries) + data.labels
    tokens = _document_tokens(teacher, data) * (texts - data.labels) + data.label_tokens * data.labels
    if known.embeddings:
        tokens = texts * known.embedded_tokens / known.embeddings
    asks = f"asks {teacher.title} about each text that it embeds: {texts:,} training queries and labels have about"
    money = f", which cost about {tokens * price.prompts / MILLION:,.2f}" if price else ""
    held = f"; {known.embeddings:,} embeddings are in the store" if known.embeddings else ""
    return f"{asks} {tokens:,.0f} tokens{money}; test queries are embedded in addition{held}"


def _costs(teacher: Teacher, calls: int, seeds: int, known: Known, data: Extent, price: Price | None) -> str:
    """What `seeds` trials with `calls` questions each ask, and what that costs where the store answers none of them."""
    prompts, answers = _tokens(teacher, known, data)
    total = seeds * calls
    trials = f" in each of {seeds} trials ({total:,} in all)" if seeds > 1 else ""
    thoughts = "" if known.answers else ", thoughts not counted"
    tokens = f"about {total * prompts:,.0f} tokens of prompts and {total * answers:,.0f} of answers{thoughts}"
    held = f"of its answers the store holds {known.answers:,}, which are not asked for again" if known.answers else ""
    money = ""
    if price is not None:
        spent = (total * prompts * price.prompts + total * answers * price.answers) / MILLION
        money = f"which cost about {spent:,.2f} at {price.prompts:g} and {price.answers:g} a million"
    return "; ".join(filter(None, (f"asks {teacher.title} at most {calls:,} times{trials}: {tokens}", money, held)))


def _tokens(teacher: Teacher, known: Known, data: Extent) -> tuple[float, float]:
    """About the tokens of a pair's prompt and of its answer: those of the store's answers, where there are some."""
    if known.answers:
        return known.prompt_tokens / known.answers, known.completion_tokens / known.answers
    around = WORD_PIECES * len(teacher.template.split())
    return (around + _document_tokens(teacher, data)) / teacher.pairs_per_prompt + data.label_tokens, WORD


def _document_tokens(teacher: Teacher, data: Extent) -> float:
    """About the tokens of a document that the teacher reads."""
    lengths = np.array(data.query_percentiles or [data.query_tokens])
    return float(lengths.clip(max=teacher.longest_document).mean())
