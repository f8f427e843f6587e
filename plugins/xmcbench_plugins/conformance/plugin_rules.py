"""The rules of datasets, evaluators, teachers, trackers and samplers.

Legend: N queries or pairs, T test queries, L labels, D dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmcbench.data import Dataset, DatasetCard, TrainingData
from xmcbench.data.prepared import content_hash
from xmcbench.data.source import Source
from xmcbench.engine import sampling
from xmcbench.evaluation.metrics import Hits, MetricTerms, find_hits
from xmcbench.runs.job import now
from xmcbench.teachers.teacher import Pairs, Teacher, TeacherError
from xmcbench.tracking.tracker import Point, Tracker
from xmcbench.trial.budget import Budget
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Failure, Record, Status
from xmcbench.trial.run import NO, UNPARSED, YES, TrialProgress
from xmcbench.trial.trial import Trial
from xmcbench_plugins.conformance.rules import NotApplicableError, Subject, require, rule
from xmcbench_plugins.conformance.tiny_trial import ORDINARY, load_tiny


class DatasetSubject(Subject):
    """A source, and the folder of datasets that it may read."""

    section = "A dataset"
    thing: Source

    @cached_property
    def dataset(self) -> Dataset:
        if reason := self.thing.missing(self.data):
            raise NotApplicableError(reason)
        found = self.thing.read(self.data)
        require(isinstance(found, Dataset), f"read returned {type(found).__name__}, expected xmcbench.data.Dataset")
        return found

    @rule("`missing` returns None, or where to get the data.", "return a text with the address and the files")
    def missing_says_where(self) -> None:
        reason = self.thing.missing(self.data / "a-folder-that-does-not-exist")
        require(reason is None or (isinstance(reason, str) and reason), f"missing returned {reason!r}")

    @rule("`fingerprint` changes when the data may have.", "return sizes and times of files, or the parameters")
    def the_fingerprint_is_stable(self) -> None:
        _ = self.dataset
        first, second = (self.thing.fingerprint(self.data) for _ in range(2))
        require(isinstance(first, str) and first, f"fingerprint returned {first!r}, expected a text")
        require(first == second, f"fingerprint returned {first!r}, then {second!r}")

    @rule(
        "Targets and ignored pairs are CSR matrices of ones, [queries, labels].",
        "build sp.csr_array of shape (queries, labels), sum duplicates, and drop zeros",
    )
    def matrices_have_the_right_shape(self) -> None:
        dataset = self.dataset
        labels = len(dataset.label_texts)
        for name, matrix, texts in (
            ("train.targets", dataset.train.targets, dataset.train.texts),
            ("test.targets", dataset.test.targets, dataset.test.texts),
            ("ignore_train", dataset.ignore_train, dataset.train.texts),
            ("ignore_test", dataset.ignore_test, dataset.test.texts),
        ):
            require(isinstance(matrix, sp.csr_array), f"{name} is a {type(matrix).__name__}, expected csr_array")
            require(matrix.shape == (len(texts), labels), f"{name} is {matrix.shape}, expected {(len(texts), labels)}")
            require((matrix.data == 1).all(), f"{name} holds values other than 1")

    @rule("The card has the sizes and the name of the data.", "make the card with `self.draft.card(...)`")
    def the_card_is_right(self) -> None:
        dataset = self.dataset
        card = dataset.card
        sizes = len(dataset.train.texts), len(dataset.test.texts), len(dataset.label_texts)
        found = card.num_train, card.num_test, card.num_labels
        require(found == sizes, f"the card says {found} training queries, test queries and labels, the data {sizes}")
        require(card.name == self.thing.name, f"the card's name is {card.name!r}, expected {self.thing.name!r}")

    @rule("Texts are str.", "decode bytes, and replace a missing text by an empty one")
    def texts_are_texts(self) -> None:
        dataset = self.dataset
        places: Sequence[tuple[str, Sequence[Any]]] = (
            ("train.texts", dataset.train.texts),
            ("test.texts", dataset.test.texts),
            ("label_texts", dataset.label_texts),
        )
        for name, texts in places:
            wrong = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
            require(wrong is None, f"{name}[{wrong}] is not a str")

    @rule("Reading twice gives the same data.", "draw at random from a fixed seed, and sort what files list")
    def reading_is_repeatable(self) -> None:
        first, second = content_hash(self.dataset), content_hash(self.thing.read(self.data))
        require(first == second, "the content hash differs between two reads")


class EvaluatorSubject(Subject):
    """An evaluator, and the hits of random predictions of 12 queries for 20 labels; two queries have no true label."""

    section = "An evaluator"

    def hits(self, order: slice = slice(None), empty: bool = False) -> Hits:
        """The hits, with queries in `order`; with `empty` no query has a true label."""
        rng = np.random.default_rng(0)
        indices = np.stack([rng.permutation(20)[:10] for _ in range(12)]).astype(np.int32)
        scores = np.tile(np.linspace(1, 0, 10, dtype=np.float32), (12, 1))
        truth = (rng.random((12, 20)) < 0.2).astype(np.float32) * (0 if empty else 1)
        truth[[3, 7]] = 0
        predictions, targets = Predictions(indices[order], scores[order]), sp.csr_array(truth[order])
        card = DatasetCard(name="check", num_train=100, num_test=12, num_labels=20)
        return find_hits(predictions, targets, np.linspace(5, 1, 20), np.arange(20), card)

    @rule("`compute(hits, k)` is a fraction in 0..1.", "divide by what the metric can reach at most")
    def values_are_fractions(self) -> None:
        for k in (1, 3, 10):
            value = float(self.thing.compute(self.hits(), k))
            require(0 <= value <= 1, f"{self.thing.name}@{k} is {value}")

    @rule("Queries without true labels are allowed.", "return 0 where the denominator is 0")
    def queries_without_labels_are_handled(self) -> None:
        value = float(self.thing.compute(self.hits(empty=True), 5))
        require(0 <= value <= 1, f"{self.thing.name}@5 is {value} if no query has a true label")

    @rule("A metric does not depend on the order of the queries.", "use hits.queries only to group hits")
    def the_order_of_queries_does_not_matter(self) -> None:
        first = float(self.thing.compute(self.hits(), 5))
        second = float(self.thing.compute(self.hits(slice(None, None, -1)), 5))
        require(abs(first - second) < 1e-9, f"{first}, then {second} with the queries in reverse order")

    @rule("All evaluators share one `Hits`: `compute` does not change it.", "copy what has to be changed")
    def hits_are_not_changed(self) -> None:
        hits = self.hits()
        found = hits.predictions
        arrays = hits.queries, hits.ranks, hits.labels, found.indices, found.scores, hits.truth.data
        before = deepcopy(arrays)
        self.thing.compute(hits, 5)
        require(all(map(np.array_equal, arrays, before)), "compute changed an array of hits")

    @rule(
        "`terms(hits, k)` returns `MetricTerms(numerator, denominator)`, float64: a term per query [N], or per label "
        "[L].",
        "return a term for every query or every label, also for one without hits, or leave `terms` out",
    )
    def terms_give_the_value(self) -> None:
        terms = getattr(self.thing, "terms", None)
        if terms is None:
            raise NotApplicableError("it has no method `terms`, so its metrics get no intervals")
        hits = self.hits()
        found = terms(hits, 5)
        require(isinstance(found, MetricTerms), f"terms returned {type(found).__name__}")
        shapes = np.shape(found.numerator), np.shape(found.denominator)
        expected = (((12,), (12,)), ((20,), (20,)))
        require(
            shapes in expected, f"terms of the shapes {shapes}, expected (12,) for 12 queries or (20,) for 20 labels"
        )
        value = float(self.thing.compute(hits, 5))
        require(abs(found.value - value) < 1e-9, f"the terms give {found.value}, compute gives {value}")


NUM_PAIRS = 40


class TeacherSubject(Subject):
    """A teacher with settings, and a dataset to ask it about."""

    section = "A teacher"
    thing: type[Teacher]

    @cached_property
    def dataset(self) -> Dataset:
        return load_tiny(ORDINARY, self.folder)

    def make(self) -> Teacher:
        settings = json.dumps({"name": self.thing.name, **self.settings})
        teacher = self.thing(self.thing.Config.model_validate_json(settings, strict=True))
        if teacher.simulated:
            teacher.read_annotations(self.dataset.training_data())
        return teacher

    def pairs(self) -> Pairs:
        """Random pairs of training queries and labels, sorted by query."""
        rng = np.random.default_rng(0)
        documents = np.sort(rng.integers(len(self.dataset.train.texts), size=NUM_PAIRS))
        labels = rng.integers(len(self.dataset.label_texts), size=NUM_PAIRS)
        return Pairs(
            [self.dataset.train.texts[row] for row in documents],
            [self.dataset.label_texts[label] for label in labels],
            documents,
            labels,
        )

    @rule("`identity()` is what an answer depends on.", "return JSON types, and the same each time")
    def the_identity_is_json(self) -> None:
        first, second = (json.dumps(self.make().identity(), sort_keys=True) for _ in range(2))
        require(first == second, f"identity returned {first}, then {second}")

    @rule(
        "`ask` answers all pairs, a few at a time and in any order.",
        "yield `Answers` whose `places` hold each of range(len(pairs)) once",
    )
    def every_pair_is_answered_once(self) -> None:
        teacher, pairs = self.make(), self.pairs()
        try:
            answers = list(teacher.ask(pairs))
        except TeacherError as problem:
            raise NotApplicableError(f"it does not answer here: {problem}") from None
        finally:
            teacher.close()
        places = np.concatenate([part.places for part in answers])
        require(
            np.array_equal(np.sort(places), np.arange(len(pairs))),
            f"places {sorted(places.tolist())[:10]} ..., expected each of 0..{len(pairs) - 1} once",
        )
        for part in answers:
            valid = np.isin(part.answers, (YES, NO, UNPARSED))
            wrong = np.asarray(part.answers)[~valid]
            require(not len(wrong), f"answers hold {wrong[:1]}, expected YES, NO or UNPARSED")
            confidence = np.asarray(part.confidence)
            require(((confidence >= 0) & (confidence <= 1)).all(), "confidence lies outside 0..1")
            for name in ("prompt_tokens", "completion_tokens", "answers", "confidence"):
                column = np.asarray(getattr(part, name))
                require(column.shape == part.places.shape, f"{name} is {column.shape}, places is {part.places.shape}")
            require(int(np.min(part.prompt_tokens)) >= 0, "prompt_tokens are negative")

    @rule(
        "`embed` yields `Vectors` of all texts, in any order.",
        "yield teachers.Vectors(places=..., vectors=..., prompt_tokens=...): int64 [M], float32 [M, D], int64 [M]",
    )
    def every_text_is_embedded_once(self) -> None:
        if self.thing.embed is Teacher.embed:
            raise NotApplicableError("it has no method `embed`")
        teacher, texts = self.make(), list(self.dataset.label_texts)
        try:
            found = list(teacher.embed(texts))
        except TeacherError as problem:
            raise NotApplicableError(f"it does not answer here: {problem}") from None
        finally:
            teacher.close()
        kinds = {type(part).__name__ for part in found} - {"Vectors"}
        require(not kinds, f"embed yields {', '.join(sorted(kinds))}")
        places = np.concatenate([part.places for part in found])
        expected = f"expected each of 0..{len(texts) - 1} once"
        require(
            np.array_equal(np.sort(places), np.arange(len(texts))), f"places {places[:10].tolist()} ..., {expected}"
        )
        for part in found:
            vectors = np.asarray(part.vectors)
            require(vectors.ndim == 2 and len(vectors) == len(part.places), f"vectors are of shape {vectors.shape}")
            require(bool(np.isfinite(vectors).all()), "vectors hold numbers that are not finite")
            require(len(part.prompt_tokens) == len(part.places), "prompt_tokens has another length than places")


FOLDER = "self.store is the folder of the run's results; make what the tracker needs in __init__"


class TrackerSubject(Subject):
    """A tracker. The scratch folder is that of its results."""

    section = "A tracker"
    thing: type[Tracker]

    def trial(self, seed: int) -> Trial:
        """A made-up trial."""
        return Trial(
            label="popular",
            method="popular",
            distribution="xmcbench",
            version="0",
            config={"depths": [1, 2], "encoder": {"name": "tiny"}},
            dataset="check-ordinary",
            dataset_hash="0" * 64,
            seed=seed,
            budget=Budget(steps=10),
        )

    def record(self, trial: Trial, status: Status) -> Record:
        ended = status is Status.OK
        return Record(
            key=trial.key,
            suite="check",
            trial=trial,
            status=status,
            metrics={"P@1": 0.5} if ended else {},
            spent={"steps": 10, "stage_seconds": {"train": 1.5}},
            failure=None if ended else Failure(type="ValueError", message="no way on", stage="fit"),
            started=now(),
            ended=now(),
        )

    @rule("A tracker is called with `begin`, `step`, `evaluation`, `end` and `close`.", FOLDER)
    def events_of_a_trial_are_handled(self) -> None:
        tracker, trial = self.thing(self.folder), self.trial(0)
        tracker.begin(trial)
        tracker.step(trial, TrialProgress("train", 0.5, {"loss": 1.25}, {"steps": 5, "stage_seconds": {"train": 1.0}}))
        tracker.evaluation(trial, Point.of({"fraction": 0.5, "steps": 5.0, "P@1": 0.4}))
        tracker.end(trial, self.record(trial, Status.OK))
        tracker.close()

    @rule("Trials may run side by side: each call says which trial it is about.", "keep state by trial.key")
    def trials_side_by_side_are_handled(self) -> None:
        tracker, trials = self.thing(self.folder), [self.trial(1), self.trial(2)]
        for trial in trials:
            tracker.begin(trial)
        for trial in (*trials, *reversed(trials)):
            tracker.step(trial, TrialProgress("train", 0.5, {"loss": 1.0}, {"steps": 1}))
        tracker.end(trials[1], self.record(trials[1], Status.ERROR))
        tracker.begin(trials[1])  # the trial is run again
        tracker.end(trials[1], self.record(trials[1], Status.OK))
        tracker.close()  # the first trial was interrupted


BATCH_SIZE, DIMENSIONS = 8, 6
PURE = "draw from the `rng` that is given, or from self.sampler.rng(purpose, epoch); keep no counter"


class SamplerSubject(Subject):
    """A registered recipe or subclass of `Sampler`, and training data."""

    section = "A sampler"

    @cached_property
    def train(self) -> TrainingData:
        return load_tiny(ORDINARY, self.folder).training_data()

    def make(self, epochs: int = 1) -> sampling.Sampler:
        """A sampler that was shown embeddings before each of `epochs` epochs."""
        sampler: sampling.Sampler = self.thing(self.train, batch_size=BATCH_SIZE, seed=0)
        require(isinstance(sampler, sampling.Sampler), f"it makes a {type(sampler).__name__}, expected a Sampler")
        for epoch in range(epochs):
            sampler.refresh(epoch, self.embeddings())
        return sampler

    def embeddings(self) -> sampling.Embeddings:
        """Fixed random vectors."""
        import torch

        draw = torch.Generator().manual_seed(0)
        queries_ND = torch.randn(len(self.train.texts), DIMENSIONS, generator=draw)
        labels_LD = torch.randn(self.train.num_labels, DIMENSIONS, generator=draw)
        return sampling.Embeddings(lambda: queries_ND, lambda: labels_LD)

    @rule("`batch(epoch, index)` is a pure function of seed, epoch and index.", PURE)
    def batches_are_a_pure_function(self) -> None:
        sampler, other = self.make(), self.make()
        forward = [sampler.batch(0, index) for index in range(sampler.num_batches(0))]
        for index in reversed(range(len(forward))):
            for asked, when in ((other, "first"), (sampler, "again")):
                same = _same(forward[index], asked.batch(0, index))
                require(same, f"batch {index} is another when it is asked for {when}")

    @rule("Each training query with a label is drawn once in an epoch.", "return a permutation from `arrange`")
    def an_epoch_visits_every_query_once(self) -> None:
        sampler = self.make()
        drawn = np.concatenate([sampler.batch(0, index).query_ids for index in range(sampler.num_batches(0))])
        labelled = np.flatnonzero(np.diff(self.train.targets.indptr))
        once = np.array_equal(np.sort(drawn), labelled)
        require(once, f"{len(drawn)} queries drawn, expected each of {len(labelled)} once")

    @rule("`labels(query_ids, rng)` returns label ids; the pool holds each once.", "return integers in 0..L-1")
    def pools_hold_labels_once(self) -> None:
        sampler = self.make()
        for index in range(sampler.num_batches(0)):
            label_ids = sampler.batch(0, index).label_ids
            ascending = (np.diff(label_ids) > 0).all()
            require(ascending, f"the pool of batch {index} is not sorted, or has a label twice")
            inside = (label_ids >= 0) & (label_ids < self.train.num_labels)
            require(inside.all(), f"the pool of batch {index} holds the label {label_ids[~inside][:1]}")

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


def _same(first: sampling.Batch, second: sampling.Batch) -> bool:
    return np.array_equal(first.query_ids, second.query_ids) and np.array_equal(first.label_ids, second.label_ids)
