"""LMTX: what a cycle asks and trains on, and what each switch changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from fakes.bench import Bench
from fitting import assert_saved_predicts_the_same, assert_triplet_settings_count
from toy import LABELS, QUERIES, UNLABELLED

from xmcbench import sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine import dual_encoder
from xmcbench.plugins.registry import registry
from xmcbench.trial.facts import Choice, ChosenBy
from xmcbench.trial.record import Status
from xmcbench_plugins.lmtx import LMTX, TEACHER_METRIC, Rejected
from xmcbench_plugins.lmtx.cycles import Cycles

from .lmtx_trials import PLENTY, Trials, same, spied, weights, yes_to_all

# A cycle --------------------------------------------------------------------------------------------------------------


def test_a_cycle_asks_about_the_best_labels_of_every_document_then_of_some(trials: Trials) -> None:
    """Best first, a document's together, none that evaluation ignores; and after training the best of some."""
    method = trials.method(cycles=1)
    first = trials.method(cycles=1)
    method.fit(trials.data.unannotated("lmtx"), trials.run(PLENTY))
    first.prepare(trials.data, trials.run(PLENTY))
    queries, labels = first.queries, first.labels
    scores = (first.embed(queries) @ first.embed(labels).T).numpy()
    scores[trials.data.ignore.toarray() > 0] = -np.inf
    shortlist, development = trials.asked
    wanted = [(d, int(label)) for d in range(QUERIES) for label in np.argsort(-scores[d], kind="stable")[:5]]
    drawn = list(dict.fromkeys(d for d, _ in shortlist))
    assert drawn != sorted(drawn)
    assert shortlist == sorted(wanted, key=lambda pair: drawn.index(pair[0]))
    best = method.predict([trials.data.texts[document] for document, _ in development], LABELS)
    for row, (document, label) in enumerate(development):
        left = [each for each in best.indices[row] if not trials.data.ignore[document, each]]
        assert label == left[0]
    assert len({document for document, _ in development}) == 30


def test_only_accepted_pairs_are_positives_and_each_document_has_one_of_a_batch(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(LMTX, "sampler", spied(LMTX.sampler, seen))
    trials.fitted(cycles=1)
    (train,) = seen
    truth = trials.data.targets.toarray()
    wanted = {pair for pair in trials.asked[0] if truth[pair]}
    assert set(zip(*(ids.tolist() for ids in train.targets.nonzero()), strict=True)) == wanted
    pool = trials.method().sampler(train, 0).batch(0, 0)
    assert len(pool.label_ids) <= len(pool.query_ids)


def test_settings_of_the_loss_change_the_loss(trials: Trials) -> None:
    assert_triplet_settings_count(trials.method, trials.data)


# Its switches ---------------------------------------------------------------------------------------------------------


def test_a_cycle_goes_on_from_the_last_ones_weights_or_afresh(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights_at_begin(monkeypatch)
    trials.says = yes_to_all
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    starts = {}
    for start in ("continue", "afresh"):
        here = trials.beside(start)
        here.fitted(start=start)
        starts[start], first[:] = list(first), []
    assert same(starts["continue"][0], starts["afresh"][0])
    assert same(starts["afresh"][0], starts["afresh"][1])
    assert not same(starts["continue"][0], starts["continue"][1])


def weights_at_begin(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    seen: list[dict[str, torch.Tensor]] = []
    begin = LMTX.begin

    def wrapper(self: LMTX, embeddings: sampling.Embeddings) -> None:
        begin(self, embeddings)
        seen.append(weights(self))

    monkeypatch.setattr(LMTX, "begin", wrapper)
    return seen


@pytest.mark.parametrize("accepted", ["cycle", "all"])
def test_answers_of_one_cycle_or_of_all_are_trained_on(
    accepted: str, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainingData] = []
    monkeypatch.setattr(LMTX, "sampler", spied(LMTX.sampler, seen))
    monkeypatch.setattr(Cycles, "improving", property(lambda _: True))
    trials.says = yes_to_all
    trials.fitted(accepted=accepted, cycles=3, learning_rate=3e-3)
    found = [set(zip(*(ids.tolist() for ids in train.targets.nonzero()), strict=True)) for train in seen]
    asked = [set(pairs) for pairs in trials.asked[::2]]
    assert asked[0] - asked[1]  # a guard: the second shortlist is another
    assert found == (asked if accepted == "cycle" else [asked[0], asked[0] | asked[1], asked[0] | asked[1] | asked[2]])
    assert all(np.all(train.targets.data == 1) for train in seen)


def test_rejected_labels_join_the_pool_or_not(trials: Trials) -> None:
    accepted, rejected = (np.zeros((QUERIES, LABELS), np.float32) for _ in range(2))
    accepted[:, 0] = 1
    rejected[np.arange(QUERIES), 1 + np.arange(QUERIES) % 30] = 1
    rejected[:7, 35:] = 1
    train = trials.data.with_targets(sp.csr_array(accepted))
    pools = {}
    for settings in ({"negatives": "in-batch"}, *({"negatives": "rejected", "rejected_per_query": n} for n in (1, 9))):
        method = trials.method(**settings)
        method._rejected = sp.csr_array(rejected)
        batch = method.sampler(train, 0).batch(0, 0)
        pools[settings.get("rejected_per_query", 0)] = set(batch.label_ids.tolist())
        allowed = {0, *np.flatnonzero(rejected[batch.query_ids].sum(0)).tolist()}
        assert pools[settings.get("rejected_per_query", 0)] <= allowed
        assert batch.positives.columns_P.tolist() == [0] * 20  # what was rejected is no positive
    assert pools[0] == {0} < pools[1]
    assert pools[9] == allowed


def test_nothing_rejected_adds_nothing() -> None:
    part = Rejected(sp.csr_array((4, 9), dtype=np.float32), 3)
    assert part.labels(np.arange(4), np.random.default_rng(0)).tolist() == []


def test_training_on_rejected_labels_ends_elsewhere(trials: Trials) -> None:
    ends = []
    for number, settings in enumerate(({"negatives": "in-batch"}, {"negatives": "rejected"})):
        here = trials.beside(str(number))
        ends.append(weights(here.fitted(cycles=1, **settings)[0]))
    assert not same(*ends)


def test_fewer_documents_are_among_more(trials: Trials) -> None:
    asked, development = {}, {}
    for count in (20, 40, None):
        here = trials.beside(str(count), yes_to_all)
        here.fitted(documents=count, cycles=1, development=12)
        asked[count], development[count] = ({document for document, _ in pairs} for pairs in here.asked)
    assert [len(asked[count]) for count in asked] == [20, 40, QUERIES]
    assert asked[20] < asked[40] < asked[None]
    assert development[20] == development[40] == development[None] < asked[20]


def test_the_shortlist_is_searched_as_predictions_are(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = []
    build = dual_encoder.build_index

    def spy(labels_LD: torch.Tensor, backend: str = "exact", *settings: Any) -> Any:
        backends.append(backend)
        return build(labels_LD, "exact", *settings)

    monkeypatch.setattr(dual_encoder, "build_index", spy)
    _, run = trials.fitted(cycles=1, search="faiss-hnsw")
    assert backends == ["faiss-hnsw"] * 2
    assert run.ledger.shortlist_recall == 1.0
    _, run = trials.beside("exact").fitted(cycles=1)
    assert run.ledger.shortlist_recall is None


# The rest -------------------------------------------------------------------------------------------------------------


def test_unused_settings_are_told() -> None:
    assert LMTX.Config(teacher="annotated").unused() == {"rejected_per_query"}
    assert LMTX.Config(teacher="annotated", negatives="rejected").unused() == set()
    no_weights = LMTX.Config(teacher="annotated", negatives="rejected", weight_temperature=None)
    assert no_weights.unused() == {"bystanders"}


def test_it_improves_on_its_initialisation(trials: Trials) -> None:
    """From random weights and a teacher that knows: the encoder learns what the teacher accepts."""
    labelled = sorted(set(range(QUERIES)) - set(UNLABELLED))
    texts, truth = [trials.data.texts[n] for n in labelled], trials.data.targets.toarray()[labelled]

    def quality(method: LMTX) -> float:
        top = method.predict(texts, 1).indices[:, 0]
        return float(np.mean(truth[np.arange(len(top)), top]))

    method, run = trials.fitted(
        shortlist=LABELS, epochs=16.0, cycles=1, hardest=40, learning_rate=5e-3, weight_temperature=None
    )
    before = trials.method()
    before.prepare(trials.data, trials.run(PLENTY))
    before.index(before.labels)
    assert quality(before) < 0.3 < 0.5 < quality(method)
    assert run.log.curve[0][TEACHER_METRIC] > 0.4


def test_what_is_saved_predicts_the_same(trials: Trials) -> None:
    method, _ = trials.fitted(cycles=1)
    assert_saved_predicts_the_same(method, trials.method(), trials.data.texts, trials.root)
    assert method.encoder_alone_scores


def test_a_suite_of_the_zero_shot_track(bench: Bench, small_encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the judge of the harness: what it says is what the simulated teacher knows, and the record tells."""
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
    registry.cache_clear()
    good = {"name": "annotated", "recall": 0.8, "false_accepts": 0.05}
    methods = {"lmtx": {"method": "lmtx", "teacher": good, "cycles": 2, "shortlist": 8, "development": 20}}
    methods["ict"] = {"method": "ict"}
    settings = {"encoder": small_encoder, "batch_size": 16, "max_query_length": 24, "max_label_length": 24}
    suite = bench.suite(methods, datasets=["catalog-60"], track="zero-shot", settings=settings, budget={"epochs": 3})
    records = bench.run(suite, debug=True)
    lmtx, ict = records["lmtx"], records["ict"]
    assert (lmtx.status, ict.status) == (Status.OK, Status.OK)
    assert (lmtx.simulated_teacher, ict.simulated_teacher) == (True, False)
    assert "0.8" in lmtx.teacher
    assert lmtx.spent["teacher_calls"] >= 144 * 8
    assert [point["cycle"] for point in lmtx.curve] == list(range(1, len(lmtx.curve) + 1))
    assert lmtx.selection_split == Choice(by=ChosenBy.TEACHER, queries=20)
    again = bench.run(
        bench.suite(
            {"twin": {**methods["lmtx"], "margin": 0.31}},
            datasets=["catalog-60"],
            track="zero-shot",
            settings=settings,
            budget={"epochs": 3},
        ),
        debug=True,
    )["twin"]
    assert again.spent["teacher_cached"] >= 144 * 8  # the first shortlist is the same, and it is charged
    assert again.spent["teacher_calls"] >= 144 * 8
