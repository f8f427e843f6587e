"""The sizes of a dataset: how many texts it has, and how long they are. Defaults of settings are derived from them.

Lengths are in tokens, estimated from words and characters, so that planning needs no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xmcbench.data.dataset import Facts
from xmcbench.data.lengths import tokens_of
from xmcbench.data.prepared import (
    default_cache_dir,
    default_data_dir,
    find_source,
    load_card,
    prepared_directory,
    read_statistics,
)
from xmcbench.data.source import Draft

HELD = 90  # a derived limit of tokens holds this percentage of the texts whole
LONGEST = 128  # tokens: the largest derived limit, as the cost of a transformer grows with the square of the length
MUCH_CUT = 0.1  # a plan has a note where more than this share of the queries is cut
MUCH_ALIKE = 0.1  # a record has a note where an encoder reads more than this share of the texts as equal to others
DOMINATES = 0.3  # a label dominates that is right for more than this share of the queries
NAME_TOKENS = 10  # the first tokens of a label's text, which name it; the others describe it


@dataclass(frozen=True)
class Extent:
    """The sizes from which settings are derived.

    A limit is None where the card states one, or where the default of the cards holds nearly all texts whole.
    """

    queries: int  # for training, with a label
    labels: int
    query_tokens: float  # mean
    label_tokens: float
    query_limit: int | None = None  # tokens that hold most queries
    label_limit: int | None = None
    stated_limit: int | None = None  # tokens of a query that the card allows
    query_percentiles: tuple[int, ...] = ()  # tokens of training queries, at 0 to 100 per cent
    labels_per_query: float = 1.0  # mean, of training queries
    head: float = 0.0  # share of the training queries that the most frequent label is right for
    documents: int = 0  # training queries, also those without a label; 0: not known

    @property
    def dominated(self) -> bool:
        """Whether one label is right for more than `DOMINATES` of the queries."""
        return self.head > DOMINATES


def extent(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Extent | None:
    """The extent of the dataset `name`; of one that is not on disk that of its card, None if it says no sizes."""
    data_dir, cache_dir = data_dir or default_data_dir(), cache_dir or default_cache_dir()
    source = find_source(name, data_dir)
    draft = source.draft
    if source.missing(data_dir):
        if draft.num_train is None or draft.num_labels is None:
            return None
        query_tokens = tokens_of(draft.query_words, draft.max_length)
        label_tokens = tokens_of(draft.label_words, draft.max_label_length)
        return Extent(draft.num_train, draft.num_labels, query_tokens, label_tokens)
    card = load_card(name, data_dir, cache_dir)
    counts = read_statistics(prepared_directory(source, data_dir, cache_dir))
    queries = _limit(draft, "max_length", counts.query_percentiles)
    labels = _limit(draft, "max_label_length", counts.label_percentiles)
    return Extent(
        card.num_train - counts.train_queries_without_labels or card.num_train,  # without annotations: all
        card.num_labels,
        min(round(counts.query_tokens), queries or card.max_length),
        min(round(counts.label_tokens), labels or card.max_label_length),
        queries,
        labels,
        card.max_length,
        counts.query_percentiles,
        counts.labels_per_train_query.mean,
        counts.train_queries_per_label.most / card.num_train,
        card.num_train,
    )


def _limit(draft: Draft, name: str, percentiles: Sequence[int]) -> int | None:
    """The limit that holds `HELD` per cent of the texts whole; None where the card states one, or its default does."""
    needed = min(LONGEST, -(-percentiles[HELD] // 8) * 8)
    enough = name in draft.model_fields_set or needed <= Facts.model_fields[name].default
    return None if enough else needed
