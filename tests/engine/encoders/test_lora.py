"""Low-rank adapters of decoders: trained, checkpointed, resumed, saved in two ways; on tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import unbroken_and_resumed
from pydantic import ValidationError
from transformers import AutoModel

from engine.encoders.test_decoders import DATA, DECODERS, saved_decoder
from engine.encoders.test_sentence_layout import prepared
from engine.training.method import Toy
from xmcbench.engine.encoders.dropout import SeededDropout, text_seeds
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.lora import read_adapters
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.planning.memory import costs
from xmcbench.engine.training.gradient_cache import SavedBytes
from xmcbench.errors import XMCBenchError

pytest.importorskip("peft")


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_decoder(request.param, tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_decoder("llama", tmp_path_factory.mktemp("llama"))


def built(
    name: str, root: Path, seed: int = 0, lora: dict[str, Any] | None = None, **settings: Any
) -> TransformerEncoder:
    config = {"name": name, "pooling": "lasttoken", "lora": {"rank": 4, **(lora or {})}, **settings}
    return TransformerEncoder.build(EncoderConfig.model_validate(config), [], seed, root)


def shake(encoder: TransformerEncoder) -> None:
    """Give the adapters values as if they were trained."""
    torch.manual_seed(1)
    for parameter in encoder.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))


def vectors(encoder: TransformerEncoder) -> torch.Tensor:
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    return embed_all(encoder, tokens, precision="float32", micro_batch_tokens=10**6)


def test_an_adapter_adds_its_product_at_the_rank_stabilised_scale(llama: str, tmp_path: Path) -> None:
    encoder = built(llama, tmp_path, lora={"rank": 4, "alpha": 6.0, "projections": ["q_proj"]})
    torch.testing.assert_close(vectors(encoder), vectors(built(llama, tmp_path, lora=None)), rtol=0, atol=0)
    shake(encoder)
    layer = encoder.transformer.layers[0].self_attn.q_proj
    x, a, b = torch.randn(3, 32), layer.lora_A["default"].weight, layer.lora_B["default"].weight
    wanted = layer.base_layer(x) + 6 / 4**0.5 * x @ a.T @ b.T
    torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-6)
    trained = {name.split(".lora_")[0] for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {f"transformer.layers.{layer}.self_attn.q_proj" for layer in (0, 1)}


@pytest.mark.parametrize(
    ("precision", "lora", "checkpointing"),
    [("float32", {}, True), ("bf16", {"frozen": "bf16"}, True), ("float32", {"save": "merged"}, False)],
)
def test_killed_and_resumed_equals_unbroken(
    decoder: str,
    precision: str,
    lora: dict[str, Any],
    checkpointing: bool,
    tmp_path: Path,
) -> None:
    encoder = {"name": decoder, "pooling": "lasttoken", "hidden_dropout": 0.1, "checkpointing": checkpointing}
    encoder["lora"] = {"rank": 4, "dropout": 0.1, **lora}
    settings = {"encoder": encoder, "precision": precision, "batch_size": 20, "learning_rate": 1e-2}
    unbroken, resumed = unbroken_and_resumed(lambda: Toy(Toy.Config.model_validate(settings)), DATA, tmp_path)
    assert 0 < resumed.calls < unbroken.calls
    weights, first = unbroken.encoder.state_dict(), AutoModel.from_pretrained(decoder).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in resumed.encoder.state_dict().items())
    assert torch.equal(
        weights["transformer.norm.weight"].float(),
        first["norm.weight"].to(weights["transformer.norm.weight"].dtype).float(),
    )
    changed = [name for name, value in weights.items() if "lora_B" in name and value.abs().sum() > 0]
    assert len(changed) == 2 * 7  # of two layers
    found, wanted = resumed.predict(DATA.texts, 10), unbroken.predict(DATA.texts, 10)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)


@pytest.mark.parametrize("save", ["adapters", "merged"])
def test_what_is_saved_has_the_same_vectors(decoder: str, save: str, tmp_path: Path) -> None:
    encoder = built(decoder, tmp_path, lora={"save": save})
    shake(encoder)
    (tmp_path / "model").mkdir()
    encoder.save(tmp_path / "model")
    again = TransformerEncoder.load(encoder.config, tmp_path / "model")
    torch.testing.assert_close(vectors(again), vectors(encoder), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "model" / "adapter_model.safetensors").exists() == (save == "adapters")
    plain = AutoModel.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor(encoder.tokenizer.at(16)(DATA.texts[:1]))
    with torch.inference_mode():
        state = torch.nn.functional.normalize(plain(ids).last_hidden_state[:, -1])
    torch.testing.assert_close(state, vectors(encoder)[:1], rtol=1e-4, atol=1e-5)


def test_a_model_whose_family_has_a_pooler_is_saved_merged(small_encoder: str, tmp_path: Path) -> None:
    encoder = built(small_encoder, tmp_path, lora={"save": "merged"})
    shake(encoder)
    encoder.save(tmp_path)
    again = TransformerEncoder.load(encoder.config, tmp_path)
    torch.testing.assert_close(vectors(again), vectors(encoder), rtol=1e-4, atol=1e-5)


def test_saved_adapters_are_what_another_training_starts_from(llama: str, tmp_path: Path) -> None:
    encoder = built(llama, tmp_path)
    shake(encoder)
    encoder.save(tmp_path)
    started = built(llama, tmp_path, seed=5, lora={"adapters": str(tmp_path)})
    torch.testing.assert_close(vectors(started), vectors(encoder), rtol=0, atol=0)


def gradients(encoder: TransformerEncoder) -> tuple[list[torch.Tensor], int]:
    """Gradients of the adapters under dropout that follows the texts, and the bytes that the pass kept."""
    encoder.train()
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    arrays = encoder.collate(tokens, np.arange(8))
    saved = SavedBytes(encoder.parameters())
    with SeededDropout(text_seeds(3, "query", np.arange(8))), saved:
        found = encoder(*(torch.from_numpy(array) for array in arrays))
    (found * torch.arange(32.0)).sum().backward()
    return [p.grad for p in encoder.parameters() if p.grad is not None], saved.total


def test_checkpointing_keeps_less_and_drops_the_same_again(decoder: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden_dropout": 0.3, "lora": {"dropout": 0.3}}
    runs = []
    for checkpointing in (False, True):
        encoder = built(decoder, tmp_path, checkpointing=checkpointing, **settings)
        shake(encoder)
        runs.append(gradients(encoder))
    (plain, kept), (again, less) = runs
    assert len(plain) == 2 * 7 * 2
    for wanted, found in zip(plain, again, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    assert less < kept / 4
    other = built(decoder, tmp_path, **settings | {"lora": {"dropout": 0.0}, "hidden_dropout": 0.0})
    shake(other)
    assert not torch.allclose(gradients(other)[0][0], plain[0], rtol=1e-3)  # there is dropout


def test_the_plan_counts_trained_parameters_and_the_adapters_products(llama: str, tmp_path: Path) -> None:
    configs = [EncoderConfig(name=llama, pooling="lasttoken"), built(llama, tmp_path).config]
    whole, adapted = (costs(config, "float32", 8) for config in configs)
    encoder = built(llama, tmp_path)
    trained = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    assert adapted.parameters == trained < whole.parameters
    assert adapted.frozen_bytes == 4 * whole.parameters
    # Each adapter of a layer is two matrices, which a token multiplies once.
    assert adapted.flops.linear - whole.flops.linear == 2 * trained
    assert adapted.flops == encoder.flops


def test_a_checkpoint_holds_no_frozen_weight(llama: str, tmp_path: Path) -> None:
    method = prepared(Toy, {"name": llama, "lora": {"rank": 4}}, tmp_path)
    assert all("lora_" in name for name in method.tensors()["encoder"])


def test_bad_settings_are_one_line_each(llama: str, tmp_path: Path) -> None:
    with pytest.raises(
        XMCBenchError, match=r"has no projection 'w_proj' \(known: down_proj, gate_proj, k_proj"
    ) as caught:
        built(llama, tmp_path, lora={"projections": ["q_proj", "w_proj"]})
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError, match=r"lora\.rank\n  Input should be greater than 0"):
        built(llama, tmp_path, lora={"rank": 0})
    with pytest.raises(ValidationError, match="found 'nano'"):
        built("nano", tmp_path)
    with pytest.raises(ValidationError, match="lora is a setting of transformers, not of static"):
        EncoderConfig.model_validate({"name": "static", "lora": {}})
    with pytest.raises(ValidationError, match="expected one of the two"):
        EncoderConfig(name=llama, checkpointing=True, compile=True)


def test_a_suite_may_name_projections() -> None:
    text = '{"name": "some/decoder", "lora": {"rank": 2, "projections": ["q_proj", "v_proj"]}}'
    config = EncoderConfig.model_validate_json(text, strict=True)  # as a suite's settings are read
    assert config.lora is not None
    assert config.lora.projections == ("q_proj", "v_proj")
    assert EncoderConfig.model_validate_json(config.model_dump_json(), strict=True) == config
    with pytest.raises(ValidationError, match=r"projections\.0\n  Input should be a valid string"):
        EncoderConfig.model_validate_json(text.replace('"q_proj"', "3"), strict=True)


def test_adapters_of_another_model_are_one_line(llama: str, tmp_path: Path) -> None:
    encoder = built(llama, tmp_path, lora={"rank": 2})
    with pytest.raises(XMCBenchError, match="cannot be read"):
        read_adapters(encoder.transformer, tmp_path, "it")
    encoder.save(tmp_path)
    with pytest.raises(XMCBenchError, match=r"found \[2, 64\], expected \[4, 64\]") as caught:
        built(llama, tmp_path, lora={"adapters": str(tmp_path)})
    assert "\n" not in str(caught.value)
    with pytest.raises(XMCBenchError, match=r"found \[2, 64\], expected none: adapters of another model than"):
        built(llama, tmp_path, lora={"rank": 2, "projections": ["q_proj"], "adapters": str(tmp_path)})
