"""What a GPU computes equals what the CPU computes, within the tolerances stated here."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from corridor_methods import METHODS
from corridors import outside, stored, train
from engine.losses.cases import CASES, embeddings, outcome
from engine.losses.reference import positives_of
from engine.training.method import toy
from torch import Tensor
from torch.nn.functional import dropout, normalize
from toy import make_run, save_small_encoder, toy_data
from transformers import AutoConfig, AutoModel

from xmcbench import losses
from xmcbench.engine.encoders.dropout import SeededDropout, text_seeds
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import FULL_ATTENTION, TransformerEncoder
from xmcbench.engine.losses import Positives
from xmcbench.engine.sampling.clusters import balanced_clusters
from xmcbench.engine.search.exact import ExactIndex
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.engine.training.gradient_cache import SavedBytes

from .places import DEVICE, needs_cuda, waits

DATA = toy_data()
STEPS = 4

pytestmark = pytest.mark.gpu


def on_device(positives: Positives) -> Positives:
    return positives.to(torch.device(DEVICE))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_the_cpus(name: str) -> None:
    """To 1e-5 of the largest gradient, in float32."""
    truth_BS = np.random.default_rng(0).random((32, 500)) < 0.02
    positives = positives_of(truth_BS)
    queries, labels = embeddings(truth_BS.shape, dtype=torch.float32, dimensions=16)
    wanted = outcome(CASES[name], queries, labels, positives, 0.1)
    on_gpu = [tensor.detach().to(DEVICE).requires_grad_() for tensor in (queries, labels)]
    computed = outcome(CASES[name], on_gpu[0], on_gpu[1], on_device(positives), 0.1)
    for value, expected in zip(computed, wanted, strict=True):
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("shape", [(64, 7), (64, 3, 5, 5), (1, 1024)])
def test_dropout_masks_are_those_of_the_cpu(shape: tuple[int, ...]) -> None:
    """Bit for bit."""
    seeds_M, ones = text_seeds(3, "query", np.arange(shape[0])), torch.ones(shape)
    with SeededDropout(seeds_M):
        wanted = dropout(ones, 0.3)
    with SeededDropout(seeds_M):
        computed = dropout(ones.to(DEVICE), 0.3)
    assert torch.equal(computed.cpu(), wanted)


def test_search_returns_the_labels_of_the_cpu() -> None:
    """The same labels where no scores tie within rounding; scores to 1e-5."""
    torch.manual_seed(0)
    queries_ND, labels_LD = (normalize(torch.randn(count, 48), dim=1) for count in (300, 20_000))
    wanted = ExactIndex(labels_LD).top_k(queries_ND, 50)
    computed = ExactIndex(labels_LD.to(DEVICE)).top_k(queries_ND.to(DEVICE), 50)
    np.testing.assert_allclose(computed.scores, wanted.scores, rtol=1e-5)
    assert float((computed.indices == wanted.indices).mean()) > 0.99


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_a_label_table_learns_as_on_the_cpu(dtype: Any) -> None:
    """Ten steps of Adam: to 1e-5 in float32, to the rounding of bf16 otherwise."""

    def learnt(device: str) -> Tensor:
        config = TableConfig(learning_rate=0.05, dtype=dtype)
        table = LabelTable(torch.arange(200), 16, config, seed=3)
        table.fill(lambda block, generator: block.normal_(0, 0.5, generator=generator))
        table = table.to(device)
        for step in range(10):
            rows = torch.randint(0, 200, (32,), generator=torch.Generator().manual_seed(step))
            (table(rows.to(device)).float() - torch.sin(rows * 7.0).to(device)[:, None]).square().sum().backward()
            table.step(0.05, scale=1.0)
        return table.weight.float().cpu()

    tolerance = 1e-5 if dtype == "float32" else 0.02
    torch.testing.assert_close(learnt(DEVICE), learnt("cpu"), rtol=tolerance, atol=tolerance)


def test_clusters_are_as_good_and_as_balanced_as_on_the_cpu() -> None:
    """The mean cosine of a vector with its cluster's centre, to 1 %."""
    vectors_ND = normalize(torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)), dim=1)

    def quality(device: str) -> float:
        clusters_N = torch.from_numpy(balanced_clusters(vectors_ND.to(device), 64, np.random.default_rng(0)))
        assert set(torch.bincount(clusters_N).tolist()) <= {62, 63}
        sums = torch.zeros(64, 32).index_add_(0, clusters_N, vectors_ND)
        return float(sums.norm(dim=1).sum() / len(vectors_ND))

    assert quality(DEVICE) == pytest.approx(quality("cpu"), rel=0.01)


def trained(root: Path, **settings: Any) -> dict[str, Tensor]:
    method = toy(save_small_encoder(root, DATA), **settings)
    method.fit(DATA, make_run(root, {"steps": STEPS}))
    return {name: tensor.float().cpu() for name, tensor in method.encoder.state_dict().items()}


def test_micro_batches_and_second_passes_change_nothing(tmp_path: Path) -> None:
    """The gradient cache: to the rounding of float32 sums."""
    whole = trained(tmp_path / "whole", micro_batch_tokens=10_000)
    for settings in ({"micro_batch_tokens": 100}, {"micro_batch_tokens": 100, "activation_gib": 0.0}):
        parts = trained(tmp_path / str(settings["activation_gib"] if len(settings) > 1 else "kept"), **settings)
        for name, tensor in parts.items():
            torch.testing.assert_close(tensor, whole[name], rtol=1e-3, atol=1e-5)


@needs_cuda
def test_bf16_trains_to_about_the_weights_of_float32(tmp_path: Path) -> None:
    """No weight is farther from that of float32 than the steps of AdamW can move one: the learning rate each."""
    start = save_small_encoder(tmp_path / "start", DATA)
    method = toy(start, precision="bf16")
    method.fit(DATA, make_run(tmp_path / "bf16", {"steps": STEPS}))
    wanted = trained(tmp_path / "float32")
    for name, tensor in method.encoder.state_dict().items():
        assert torch.isfinite(tensor).all(), name
        assert float((tensor.float().cpu() - wanted[name]).abs().max()) <= STEPS * method.config.learning_rate


def test_activations_are_counted() -> None:
    layer = torch.nn.Linear(64, 64, device=DEVICE)
    saved = SavedBytes(layer.parameters())
    with saved:
        kept = layer(torch.randn(100, 64, device=DEVICE)).relu()
    assert saved.total >= kept.numel() * 4


def num_waits(root: Path, **settings: Any) -> int:
    """How often the host waited for the GPU in a training."""
    with waits() as so_far:
        trained(root, **settings)
        return so_far().total()


def test_no_micro_batch_waits_for_the_gpu(tmp_path: Path) -> None:
    """Several times as many micro-batches cost no further synchronisation."""
    few = num_waits(tmp_path / "few", micro_batch_tokens=10_000)
    assert num_waits(tmp_path / "many", micro_batch_tokens=50) == few


@needs_cuda
def test_faiss_finds_most_of_what_exact_search_finds() -> None:
    faiss = pytest.importorskip("faiss", reason="needs faiss-gpu")
    if not getattr(faiss, "get_num_gpus", int)():
        pytest.skip("needs faiss-gpu; the installed faiss sees no GPU")
    from xmcbench.engine.search.index import build_index

    labels_LD, queries_ND = (normalize(torch.randn(count, 32, device=DEVICE), dim=1) for count in (5000, 100))
    wanted = ExactIndex(labels_LD).top_k(queries_ND, 10)
    found = build_index(labels_LD, "faiss-ivf").top_k(queries_ND, 10)
    hits = [np.isin(*rows).mean() for rows in zip(found.indices, wanted.indices, strict=True)]
    assert np.mean(hits) > 0.9


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corridors")


@needs_cuda
@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_in_its_corridor(name: str, cache: Path) -> None:
    """The corridors were measured on a CPU; a GPU rounds otherwise, as another processor does."""
    assert outside(train(name, 0, cache), stored()[name]) == []


def test_tensors_of_two_devices_do_not_mix() -> None:
    truth_BS = np.random.default_rng(0).random((8, 20)) < 0.2
    queries, labels = embeddings(truth_BS.shape, dtype=torch.float32)
    positives = on_device(positives_of(truth_BS))
    for given in ((queries.to(DEVICE), labels, positives), (queries, labels.to(DEVICE), positives)):
        with pytest.raises(RuntimeError, match="device"):
            losses.softmax(*given, positives.every(), temperature=0.1)


@pytest.mark.parametrize("kind", sorted(FULL_ATTENTION))
def test_a_mask_per_token_hides_what_a_mask_per_text_hides(kind: str) -> None:
    """Embeddings of padded texts are those of plain attention on the CPU, and nothing waits for the GPU."""
    sizes = {"vocab_size": 50, "max_position_embeddings": 20, "pad_token_id": 0}
    sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    settings = AutoConfig.for_model(
        kind, **({"dim": 16, "n_layers": 2, "n_heads": 2} if kind == "distilbert" else {}), **sizes
    )
    no_tokenizer: Any = Mock()
    plain = AutoModel.from_config(settings, attn_implementation="eager")
    fused = AutoModel.from_config(settings, attn_implementation="sdpa")
    fused.load_state_dict(plain.state_dict())
    ids_MW = torch.randint(1, 50, (3, 7), generator=torch.Generator().manual_seed(1))
    mask_MW = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    with torch.inference_mode():
        wanted = TransformerEncoder(EncoderConfig(), plain, no_tokenizer).eval()(ids_MW, mask_MW)
        encoder = TransformerEncoder(EncoderConfig(), fused, no_tokenizer).eval().to(DEVICE)
        given = ids_MW.to(DEVICE), mask_MW.to(DEVICE)
        with waits() as so_far:
            computed = encoder(*given)
            assert not so_far()
    torch.testing.assert_close(computed.cpu(), wanted, rtol=1e-4, atol=1e-5)
