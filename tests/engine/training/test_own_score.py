"""A method with a score and token vectors of its own: everything that the engine derives of them agrees.

Legend: M texts, W tokens of the longest, H numbers of a state, B queries, S labels, T token vectors of D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import assert_saved_predicts_the_same, unbroken_and_resumed
from many_workers import on_workers
from torch import Tensor, nn
from torch.nn.functional import pad
from toy import LABELS, make_run, toy_data, two_steps

from xmcbench import XMCBenchError, losses, sampling
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.losses import own_scores
from xmcbench.engine.planning.memory import costs
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.trial.method import MethodInfo

from .method import OF_STATIC, STATIC

DATA = toy_data(ignored=1)
TOKENS, SIZE = 6, 8
NEGATIVES = ["in-batch", "hard", "cached"]


class Tokens(nn.Module):
    """The states of the first tokens, projected; with a dropout that depends on the text alone."""

    def __init__(self, width: int, ragged: bool = False) -> None:
        super().__init__()
        self.project, self.drop, self.ragged = nn.Linear(width, SIZE), nn.Dropout(0.1), ragged

    def forward(self, states_MWH: Tensor, mask_MW: Tensor, ids_MW: Tensor) -> Tensor:
        assert states_MWH.shape[:2] == mask_MW.shape == ids_MW.shape
        vectors_MTD = self.drop(self.project(states_MWH)) * mask_MW[..., None]
        if self.ragged:
            return vectors_MTD
        return pad(vectors_MTD[:, :TOKENS], (0, 0, 0, max(0, TOKENS - vectors_MTD.shape[1])))


class Late(EmbeddingMethod):
    """MaxSim times a factor that is learnt."""

    name = "late"
    info = MethodInfo(summary="late interaction, for tests")

    class Config(EmbeddingMethod.Config):
        negatives: str = "in-batch"
        ragged: bool = False

    def build_pooling(self, width: int) -> nn.Module:
        return Tokens(width, self.config.ragged)

    def build_modules(self, train: TrainingData) -> nn.Module:  # noqa: ARG002
        return nn.ParameterDict({"factor": nn.Parameter(torch.tensor(1.0))})

    def load_modules(self, tensors: dict[str, Tensor]) -> nn.Module:
        return nn.ParameterDict({name: nn.Parameter(tensor) for name, tensor in tensors.items()})

    def score(self, queries_BV: Tensor, labels_SV: Tensor) -> Tensor:
        queries_BTD, labels_STD = (rows.unflatten(1, (TOKENS, SIZE)) for rows in (queries_BV, labels_SV))
        return self.modules["factor"] * torch.einsum("btd,sud->btsu", queries_BTD, labels_STD).amax(3).sum(1)

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        sources: dict[str, list[sampling.Negatives]] = {
            "in-batch": [],
            "hard": [sampling.Nearest(shortlist=8, start=1, every=1)],
            "cached": [sampling.Cached(5)],
        }
        size, negatives = self.config.batch_size, sources[self.config.negatives]
        return sampling.Sampler(train, batch_size=size, seed=seed, negatives=negatives)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        positives = batch.positives
        return losses.decoupled_softmax(queries_BD, labels_SD, positives, positives.every(), temperature=0.5)


class Network(nn.Module):
    """States that depend on their neighbours."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 12, padding_idx=0)
        self.mix, self.drop = nn.Conv1d(12, 16, 3, padding=1), nn.Dropout(0.1)

    def forward(self, ids_MW: Tensor, mask_MW: Tensor) -> Tensor:
        words_MWH = self.words(ids_MW) * mask_MW[..., None]
        return self.drop(self.mix(words_MWH.transpose(1, 2)).transpose(1, 2).tanh())


class Own(Late):
    """The same with a network of its own."""

    name = "own"

    def build_network(self, vocabulary: int) -> nn.Module:
        return Network(vocabulary)


class Pooled(EmbeddingMethod):
    """That network, pooled by the settings; it notes what the sampler's part and `begin` are shown."""

    name = "pooled"
    info = MethodInfo(summary="for tests")
    build_network = Own.build_network

    def begin(self, embeddings: sampling.Embeddings) -> None:
        self.begun = embeddings.train

    def sampler(self, train: TrainingData, seed: int) -> sampling.Sampler:
        self.curriculum = Curriculum()
        return sampling.Sampler(train, batch_size=20, seed=seed, negatives=[self.curriculum])

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        return losses.psl(queries_BD, labels_SD, batch.positives, temperature=0.1)


class Curriculum(sampling.Negatives):
    """Notes the share of the budget that is spent when an epoch begins."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def labels(self, query_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG002
        return np.empty(0, np.int64)

    def refresh(self, epoch: int, embeddings: sampling.Embeddings) -> None:  # noqa: ARG002
        self.shares.append(embeddings.spent())


def late(encoder: str, **settings: Any) -> Late:
    own: dict[str, Any] = {"name": encoder} | (OF_STATIC if encoder == STATIC else {"hidden_dropout": 0.1})
    return Late(Late.Config(**({"encoder": own, "batch_size": 20, "learning_rate": 3e-3} | settings)))


def outcome(_workers: Workers, root: str, encoder: str, settings: dict[str, Any], numbers: int = 0) -> dict[str, Any]:
    """What 5 steps end with; `numbers`: those in memory at a time while pairs are scored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(own_scores.NUMBERS, "cpu", numbers or own_scores.NUMBERS["cpu"])
        method, run = late(encoder, **settings), make_run(Path(root), {"steps": 5})
        method.fit(DATA, run)
        found = method.predict(DATA.texts, LABELS)
    counts = ("encoder_tokens", "encoder_flops", "module_flops", "scoring_flops")
    return {
        "scores": np.take_along_axis(found.scores, np.argsort(found.indices, axis=1), axis=1),
        "factor": method.modules["factor"].detach().numpy(),
        "ledger": {name: getattr(run.ledger, name) for name in counts},
    }


def assert_alike(found: dict[str, Any], wanted: dict[str, Any], *, exactly_charged: bool = True) -> None:
    for name in ("scores", "factor"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-3, atol=2e-5, err_msg=name)
    if exactly_charged:
        assert found["ledger"] == wanted["ledger"]


@pytest.mark.parametrize("negatives", NEGATIVES[1:])
def test_cached_is_uncached_and_chunked_is_whole(negatives: str, small_encoder: str, tmp_path: Path) -> None:
    settings = {"negatives": negatives}
    wanted = outcome(ALONE, str(tmp_path / "whole"), small_encoder, settings)
    again = {"micro_batch_tokens": 16, "activation_gib": 0.0, **settings}
    assert_alike(outcome(ALONE, str(tmp_path / "cached"), small_encoder, again), wanted)
    assert_alike(outcome(ALONE, str(tmp_path / "chunks"), small_encoder, settings, 20 * 3 * TOKENS * SIZE), wanted)
    assert wanted["factor"] != 1


@pytest.mark.parametrize("negatives", NEGATIVES[1:])
def test_sharded_is_unsharded(negatives: str, tmp_path: Path) -> None:
    """But for the work of the sampler, which each worker does for its own labels."""
    wanted = outcome(ALONE, str(tmp_path / "alone"), STATIC, {"negatives": negatives})
    for found in on_workers(2, outcome, str(tmp_path / "two"), STATIC, {"negatives": negatives}):
        assert_alike(found, wanted)


def test_a_network_of_a_method_takes_the_encoders_place(small_encoder: str, tmp_path: Path) -> None:
    def made(**settings: Any) -> Own:
        return Own(Own.Config(encoder={"name": small_encoder}, batch_size=20, learning_rate=3e-3, **settings))

    unbroken, resumed = unbroken_and_resumed(made, DATA, tmp_path)
    assert np.array_equal(resumed.predict(DATA.texts, LABELS).scores, unbroken.predict(DATA.texts, LABELS).scores)
    assert_saved_predicts_the_same(unbroken, made(), DATA.texts, tmp_path)
    small = made(micro_batch_tokens=16, activation_gib=0.0)
    small.fit(DATA, make_run(tmp_path / "small", {"steps": 5}))
    found, wanted = (method.predict(DATA.texts, LABELS).scores for method in (small, unbroken))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-5)
    planned = costs(made().config.encoder, "float32", 6, len(unbroken.encoder.tokenizer.tokenizer), made())
    assert planned.parameters == sum(p.numel() for p in unbroken.encoder.parameters())
    assert planned.flops == unbroken.encoder.flops
    assert planned.flops.linear == 2 * 16 * (3 * 12 + SIZE)


def test_settings_pool_a_methods_network_and_parts_see_budget_and_data(small_encoder: str, tmp_path: Path) -> None:
    method = Pooled(Pooled.Config(encoder={"name": small_encoder, "pooling": "weightedmean"}))
    method.fit(DATA, make_run(tmp_path, {"steps": 6}))  # three an epoch
    assert method.begun is DATA
    assert method.curriculum.shares == [0, 0.5]
    assert method.index_LD.shape == (LABELS, 16)
    torch.testing.assert_close(method.index_LD.norm(dim=1), torch.ones(LABELS))


@pytest.mark.parametrize("encoder", [STATIC, "small"])
def test_resumed_is_unbroken_and_saved_is_loaded(encoder: str, small_encoder: str, tmp_path: Path) -> None:
    name = small_encoder if encoder == "small" else encoder
    unbroken, resumed = unbroken_and_resumed(lambda: late(name, negatives="hard"), DATA, tmp_path)
    found, wanted = resumed.predict(DATA.texts, LABELS), unbroken.predict(DATA.texts, LABELS)
    assert np.array_equal(found.scores, wanted.scores)
    assert np.array_equal(found.indices, wanted.indices)
    assert_saved_predicts_the_same(unbroken, late(name), DATA.texts, tmp_path)
    assert not unbroken.encoder_alone_scores


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_a_step_is_charged_what_torch_counts(negatives: str, tmp_path: Path) -> None:
    method, run = late(STATIC, negatives=negatives), make_run(tmp_path, {"steps": 100})
    charged, counter = two_steps(method, DATA, run)
    # Torch's counter names the module of a forward pass alone; a backward pass multiplies twice as much.
    in_encoder = 3 * sum(counter.get_flop_counts()["StaticEncoder"].values())
    assert charged == pytest.approx(counter.get_total_flops() - in_encoder, rel=0.05)
    assert charged > 0 < in_encoder


def test_embeddings_of_several_widths_are_refused(tmp_path: Path) -> None:
    method = late(STATIC, ragged=True)
    with pytest.raises(XMCBenchError, match="Tokens: expected embeddings of one width, found 16 numbers for two"):
        method.prepare(DATA, make_run(tmp_path, {"steps": 1}))


def test_an_approximate_search_is_refused_before_training() -> None:
    method = late(STATIC, search="faiss-hnsw")
    with pytest.raises(XMCBenchError, match="'late' defines its own score, which is searched exactly: expected search"):
        method.check_machine()
