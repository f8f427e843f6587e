"""What a plan says of a trial is what the trial then does, for every method that trains an encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from toy import make_run

from engine.training.method import Toy
from engine.training.test_own_score import late
from xmcbench.data.dataset import TrainingData
from xmcbench.data.tokens import Tokens
from xmcbench.engine.charging import Charging
from xmcbench.engine.dual_encoder import all_embeddings
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.encoders.build import build_encoder
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.planning import dry_run as counted
from xmcbench.engine.planning.dry_run import DryRun
from xmcbench.engine.planning.memory import EncoderCosts, _table_gradients, _word_gradients, costs, tokenizer_of
from xmcbench.engine.planning.probe import Table, Workload, observe
from xmcbench.engine.search import index
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import Registry
from xmcbench.trial.budget import Ledger

OFTEN = {"refresh_start": 1, "refresh_every": 1}
CLUSTERS = {"cluster_size": 4, "cluster_start": 1, "cluster_every": 1}
METHODS: dict[str, dict[str, Any]] = {
    "dexml in-batch": {"negatives": "in-batch"},
    "dexml hard": {"negatives": "hard", "shortlist": 8, "negatives_per_query": 2, **OFTEN},
    "dexml all": {"negatives": "all"},
    "dexml cache": {"negatives": "embedding-cache", "cached_negatives": 5},
    "unidec both": {"negatives_per_query": 2, "dimension": 24, **OFTEN},
    "unidec de": {"heads": "de", "batches": "shuffled", "negatives_per_query": 0},
    "prime": {"free_vectors": 16, "feedforward": 64, **CLUSTERS},
    "prime exact": {"free_vectors": 16, "feedforward": 64, "final_centroids": "exact", **CLUSTERS},
    "ngame": {"hardest": 5, **CLUSTERS},
    "ova": {},
    "ova e4m3": {"table": {"optimizer": "sgd", "dtype": "e4m3"}},
    "ova start": {"rows": "label-embeddings", "label_texts_as_queries": True},
    "ict": {},
    "rts": {},
}


def built(name: str, encoder: str, **settings: Any) -> EmbeddingMethod:
    found = Registry().method(name.split()[0]).thing
    return found(found.Config.model_validate({"encoder": {"name": encoder}, "batch_size": 16} | settings))


def workload(method: EmbeddingMethod, data: TrainingData, cache: Path) -> tuple[Workload, EncoderCosts]:
    train = method.training_data(data)
    tokenizer, told = tokenizer_of(method.config.encoder, train.texts, cache)
    assert told == ""
    queries = tokenizer.tokens(train.texts, data.card.max_length)
    labels = tokenizer.tokens(train.label_texts, data.card.max_label_length)
    return Workload.of(train, queries, labels, 10, len(train.texts), measured=True), costs(
        method.config.encoder, "float32", 6, method=method
    )


def on_paper(method: EmbeddingMethod, data: TrainingData, root: Path, budget: dict[str, Any]) -> Ledger:
    work, encoder = workload(method, data, root / "cache")
    probe = observe(method, work, encoder.dimension)
    run = make_run(root, budget)
    ledger = Ledger(clock="wall", _clock=lambda: ledger.flops / 1e12)
    charging = Charging(ledger, encoder.flops, budget=run.budget)
    return DryRun(method, work, probe, charging, run.budget, run.seed).spend().ledger


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_is_what_a_trial_then_takes(name: str, small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    budget = {"encoder_tokens": 6000}
    planned = on_paper(built(name, small_encoder, **METHODS[name]), data, tmp_path / "paper", budget)
    run = make_run(tmp_path / "real", budget)
    built(name, small_encoder, **METHODS[name]).fit(data, run)
    spent = run.ledger
    assert planned.steps == pytest.approx(spent.steps, rel=0.1, abs=1)
    assert planned.encoder_tokens == pytest.approx(spent.encoder_tokens, rel=0.05)
    assert planned.encoder_flops == pytest.approx(spent.encoder_flops, rel=0.05)
    assert planned.scoring_flops == pytest.approx(spent.scoring_flops, rel=0.25)
    assert planned.module_flops == pytest.approx(spent.module_flops, rel=0.1)
    assert planned.flops == pytest.approx(spent.flops, rel=0.05)


PASSES = {**METHODS, "prime no": {"free_vectors": 0, "centroids": "none"}, "unidec start": {"rows": "label-embeddings"}}


@pytest.mark.parametrize("name", [*PASSES, "dexa"])
def test_a_method_says_which_texts_it_embeds_before_the_first_step(
    name: str, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = built(name, "static", **PASSES.get(name, {}))
    data, run, asked = method.training_data(data), make_run(tmp_path, {"steps": 1}), []
    on_demand = Charging.on_demand

    def watched(self: Charging, vectors: Any, lengths_N: np.ndarray, module_flops: int) -> Any:
        return lambda: asked.append(len(lengths_N)) or on_demand(self, vectors, lengths_N, module_flops)()

    monkeypatch.setattr(Charging, "on_demand", watched)
    method.prepare(data, run)
    with torch.no_grad():
        method.begin(all_embeddings(method))
    numbers = {"queries": len(data.texts), "labels": data.num_labels}
    assert sorted(asked) == sorted(numbers[texts] for texts in method.first_passes)


@pytest.mark.parametrize("name", ["dexml hard", "prime", "ova start"])
def test_a_plan_of_a_static_encoder_too(name: str, data: TrainingData, tmp_path: Path) -> None:
    test_a_plan_is_what_a_trial_then_takes(name, "static", data, tmp_path)


@pytest.mark.parametrize("negatives", ["in-batch", "hard"])
@pytest.mark.parametrize("encoder", ["static", "small"])
def test_a_plan_of_a_score_that_is_no_inner_product(
    negatives: str, encoder: str, small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    targets = data.targets.tolil()
    targets[:, -10:] = 0  # labels that are true for no query, as a probe always finds where there are more
    data = replace(data, targets=csr_array(targets))
    name, budget = small_encoder if encoder == "small" else encoder, {"steps": 9}
    planned = on_paper(late(name, negatives=negatives), data, tmp_path / "paper", budget)
    run = make_run(tmp_path / "real", budget)
    late(name, negatives=negatives).fit(data, run)
    for count in ("encoder_flops", "scoring_flops", "module_flops"):
        assert planned.spent(count) == pytest.approx(run.ledger.spent(count), rel=0.1), count
    assert (planned.scoring_flops > 0) is (negatives == "hard")


@pytest.mark.parametrize("lengths", [[3] * 200, [1] * 10 + [40] * 20])
def test_a_step_of_a_static_encoder_keeps_what_is_planned(
    lengths: list[int], data: TrainingData, tmp_path: Path
) -> None:
    """A vector a text, and numbers a word piece."""
    config = EncoderConfig(name="static", words="random", dimension=64)
    encoder = build_encoder(config, data.texts, 0, tmp_path).train()
    vocabulary = len(encoder.tokenizer.tokenizer)
    planned = costs(config, "float32", 6, vocabulary)
    assert planned.parameters == planned.word_parameters == 64 * vocabulary
    tokens = Tokens.from_offsets(np.ones(sum(lengths), np.int32), np.cumsum([0, *lengths]))
    saved = SavedBytes(encoder.parameters())
    with saved:
        output_MD = encoder(*map(torch.from_numpy, encoder.collate(tokens, np.arange(len(lengths)))))
    kept = planned.kept_bytes(sum(lengths), len(lengths)) + planned.bytes_per_pass
    assert kept == pytest.approx(saved.total, rel=0.02)
    del output_MD


def test_the_words_of_a_step_are_counted_once_each(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    work, _ = workload(built("dexml hard", small_encoder, **METHODS["dexml hard"]), data, tmp_path)
    assert work.distinct(1) == pytest.approx(1)
    assert work.distinct(10**9) == pytest.approx((work.token_counts_V > 0).sum())
    ids = np.repeat(np.arange(len(work.token_counts_V)), work.token_counts_V)
    drawn = np.random.default_rng(0).choice(ids, 50)
    assert work.distinct(50) == pytest.approx(len(np.unique(drawn)), rel=0.25)


def test_word_gradients_have_the_rows_of_every_micro_batch(data: TrainingData, tmp_path: Path) -> None:
    method = built("dexml hard", "static", **METHODS["dexml hard"])
    work, _ = workload(method, data, tmp_path)
    one, several = (_word_gradients(method, work, np.full(texts, 64), "cpu") for texts in (10, 10_000))
    assert one == work.distinct(640)
    assert several > 10 * work.distinct(640_000)


def test_an_approximate_search_costs_what_the_plan_says_and_its_recall_is_in_the_ledger(
    small_encoder: str, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = METHODS["dexml hard"] | {"batch_size": 2 * len(data.texts)}
    planned, spent = Ledger(), []
    for large in (10**12, 0):
        monkeypatch.setattr(index, "LARGE_SEARCH", large)
        monkeypatch.setattr(counted, "EXACT_PAIRS", large)
        planned = on_paper(built("dexml", small_encoder, **settings), data, tmp_path / f"paper{large}", {"steps": 2})
        run = make_run(tmp_path / f"real{large}", {"steps": 2})
        built("dexml", small_encoder, **settings).fit(data, run)
        spent.append(run.ledger)
    exact, approximate = spent
    assert exact.shortlist_recall is None
    assert approximate.shortlist_recall == pytest.approx(1.0)  # so few labels are one cluster
    assert approximate.scoring_flops != exact.scoring_flops
    assert planned.scoring_flops == pytest.approx(approximate.scoring_flops, rel=0.05)


def test_scores_that_only_true_labels_have_do_not_grow_with_the_pool(
    small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    targets = data.targets.tolil()
    targets[:, -10:] = 0  # labels that are true for no query
    data = replace(data, targets=csr_array(targets))
    probes = {}
    for name in ("dexml in-batch", "unidec both"):
        method = built(name, small_encoder, **METHODS[name])
        work, encoder = workload(method, data, tmp_path)
        probes[name] = observe(method, work, encoder.dimension)
    assert probes["dexml in-batch"].true_label_flops == 0
    assert probes["unidec both"].true_label_flops > 0  # its loss over labels has those with a query alone


def test_what_finds_groups_of_labels_is_planned(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    few, many = (
        on_paper(built("prime", small_encoder, free_vectors=vectors), data, tmp_path / str(vectors), {"steps": 1})
        for vectors in (0, 16)
    )
    assert many.scoring_flops > few.scoring_flops


@pytest.mark.parametrize("then", ["end", "skip"])
def test_a_plan_refuses_the_passes_that_a_trial_refuses(
    then: str, small_encoder: str, data: TrainingData, tmp_path: Path
) -> None:
    settings = METHODS["dexml hard"] | {"refresh_beyond_budget": then}
    one_epoch = on_paper(built("dexml", small_encoder, **settings), data, tmp_path, {"epochs": 1})
    budget = {"encoder_tokens": one_epoch.encoder_tokens + 500}  # too few for the pass before the second epoch
    planned = on_paper(built("dexml", small_encoder, **settings), data, tmp_path, budget)
    run = make_run(tmp_path / "real", budget)
    built("dexml", small_encoder, **settings).fit(data, run)
    assert planned.refused_pass == run.ledger.refused_pass == 1
    assert planned.steps == pytest.approx(run.ledger.steps, abs=1)
    assert planned.encoder_tokens == pytest.approx(run.ledger.encoder_tokens, rel=0.05)


def test_any_limit_ends_it(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    def planned(**budget: Any) -> Ledger:
        return on_paper(built("dexml", small_encoder, negatives="in-batch"), data, tmp_path, budget)

    assert planned(steps=5).steps == 5
    assert planned(epochs=2).epochs == 2
    assert planned(flops=1e8).flops >= 1e8
    assert planned(device_seconds=0.001).device_seconds >= 0.001
    assert planned(steps=5, epochs=0.5).steps < 5
    with pytest.raises(XMCBenchError, match="stops at teacher_calls, which a plan cannot count"):
        planned(teacher_calls=5)


def test_tables_are_seen_at_their_full_size(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = built("prime", small_encoder, free_vectors=16, feedforward=64)
    work, encoder = workload(method, data, tmp_path)
    tables = observe(method, work, encoder.dimension).tables
    assert {name: table.rows for name, table in tables.items()} == {"bank": 16, "centroids": data.num_labels}
    run = make_run(tmp_path / "run", {"steps": 1})
    method.fit(data, run)
    for name, table in method.tables().items():
        held = sum(buffer.nbytes for buffer in table.buffers() if buffer.ndim)
        assert tables[name].rows * tables[name].row_bytes == pytest.approx(held)


def test_a_module_of_a_method_counts(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = Toy(Toy.Config.model_validate({"encoder": {"name": small_encoder}, "batch_size": 16}))
    work, encoder = workload(method, data, tmp_path)
    probe = observe(method, work, encoder.dimension)
    method.fit(data, make_run(tmp_path / "run", {"steps": 1}))
    assert encoder.parameters + probe.module_parameters == method.num_parameters


@pytest.mark.parametrize("name", ["dexml in-batch", "dexml hard", "dexml cache", "ngame"])
@pytest.mark.parametrize("budget", [{"encoder_tokens": 6000}, {"steps": 11, "epochs": 7}, {"flops": 1e10}])
def test_steps_counted_at_once_are_counted_like_single_ones(
    name: str, budget: dict[str, Any], small_encoder: str, data: TrainingData, tmp_path: Path, monkeypatch: Any
) -> None:
    method = built(name, small_encoder, **METHODS[name], batch_size=4)
    at_once = on_paper(method, data, tmp_path, budget)
    # Where nothing is left, each step is taken by itself.
    monkeypatch.setattr(Ledger, "left", lambda _, limits: dict.fromkeys(limits.spending(), 0.0))
    singly = on_paper(method, data, tmp_path, budget)
    for name in ("steps", "epochs", "queries", "pool_labels", "pool_positives", "encoder_tokens", "flops"):
        assert at_once.spent(name) == pytest.approx(singly.spent(name), rel=1e-12)
    assert at_once.stage_seconds == pytest.approx(singly.stage_seconds)
    assert at_once.largest_step == pytest.approx(singly.largest_step)


def test_a_table_in_eight_bits_has_the_gradients_of_a_chunk_at_once() -> None:
    rows, dimension = 1_305_265, 768
    exact = Table(rows, 4 * dimension + 8, dimension, learns=True)
    small = Table(rows, dimension + 8, dimension, learns=True, whole_gradient=False)
    assert _table_gradients(exact, rows, rows, 4096) == 4 * rows * dimension
    assert _table_gradients(small, rows, rows, 4096) == 3 * 4 * 4096 * dimension
