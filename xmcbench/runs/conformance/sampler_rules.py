"""The rules of samplers. Legend: N training queries, L labels, D dimensions. Imports torch."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from xmcbench.data import TrainingData
from xmcbench.engine.sampling import Batch, Embeddings, Sampler
from xmcbench.runs.conformance.rules import Subject, require, rule
from xmcbench.runs.conformance.tiny_trial import ORDINARY, load_tiny

BATCH_SIZE, DIMENSIONS = 8, 6


PURE = "draw from the `rng` that is given, or from self.sampler.rng(purpose, epoch); keep no counter"


class SamplerSubject(Subject):
    """A registered recipe or subclass of `Sampler`, and training data."""

    section = "A sampler"

    @cached_property
    def train(self) -> TrainingData:
        return load_tiny(ORDINARY, self.folder).training_data()

    def make(self, seed: int = 0, epochs: int = 1) -> Sampler:
        """A sampler that was shown embeddings before each of `epochs` epochs."""
        sampler: Sampler = self.thing(self.train, batch_size=BATCH_SIZE, seed=seed)
        require(isinstance(sampler, Sampler), f"it makes a {type(sampler).__name__}, expected a Sampler")
        for epoch in range(epochs):
            sampler.refresh(epoch, self.embeddings())
        return sampler

    def embeddings(self) -> Embeddings:
        """Fixed random vectors."""
        draw = torch.Generator().manual_seed(0)
        queries_ND = torch.randn(len(self.train.texts), DIMENSIONS, generator=draw)
        labels_LD = torch.randn(self.train.num_labels, DIMENSIONS, generator=draw)
        return Embeddings(lambda: queries_ND, lambda: labels_LD)

    @rule("`batch(epoch, index)` is a pure function of seed, epoch and index.", PURE)
    def batches_are_a_pure_function(self) -> None:
        sampler, other = self.make(), self.make()
        forward = [sampler.batch(0, index) for index in range(sampler.num_batches(0))]
        for index in reversed(range(len(forward))):
            require(
                _same(forward[index], other.batch(0, index)), f"batch {index} is another when it is asked for first"
            )
            require(
                _same(forward[index], sampler.batch(0, index)), f"batch {index} is another when it is asked for again"
            )

    @rule("Each training query with a label is drawn once in an epoch.", "return a permutation from `arrange`")
    def an_epoch_visits_every_query_once(self) -> None:
        sampler = self.make()
        drawn = np.concatenate([sampler.batch(0, index).query_ids for index in range(sampler.num_batches(0))])
        labelled = np.flatnonzero(np.diff(self.train.targets.indptr))
        require(
            np.array_equal(np.sort(drawn), labelled),
            f"{len(drawn)} queries drawn, expected each of {len(labelled)} once",
        )

    @rule("`labels(query_ids, rng)` returns label ids; the pool holds each once.", "return integers in 0..L-1")
    def pools_hold_labels_once(self) -> None:
        sampler = self.make()
        for index in range(sampler.num_batches(0)):
            label_ids = sampler.batch(0, index).label_ids
            require(
                bool((np.diff(label_ids) > 0).all()), f"the pool of batch {index} is not sorted, or has a label twice"
            )
            inside = (label_ids >= 0) & (label_ids < self.train.num_labels)
            require(bool(inside.all()), f"the pool of batch {index} holds the label {label_ids[~inside][:1]}")

    @rule("A true label among the negatives is a positive.", "leave `batch` to Sampler, or mark with `true_pairs`")
    def true_pairs_are_positives(self) -> None:
        sampler = self.make()
        batch = sampler.batch(0, 0)
        expected = self.train.targets[batch.query_ids][:, batch.label_ids].nnz
        found = len(batch.positives.rows_P)
        require(found == expected, f"{found} positives in the first batch, and {expected} pairs of it are true")

    @rule(
        "What a part makes of embeddings, and a resumed run cannot make again, goes through `state` and `load_state`.",
        "return it as tensors from `state`, and take it over in `load_state`",
    )
    def a_resumed_sampler_continues(self) -> None:
        sampler, resumed = self.make(epochs=2), self.make(epochs=0)
        resumed.load_state(sampler.state())
        for index in range(sampler.num_batches(1)):
            same = _same(sampler.batch(1, index), resumed.batch(1, index))
            require(same, f"batch {index} of epoch 1 is another after `load_state`")


def _same(first: Batch, second: Batch) -> bool:
    return np.array_equal(first.query_ids, second.query_ids) and np.array_equal(first.label_ids, second.label_ids)
