"""Encoders of the user's: loaded whole, or refused in a line that names the folder and what would mend it."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy import save_small_encoder, toy_data
from transformers import AutoModel, AutoModelForMaskedLM, DebertaV2Config

from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.files.pretrained import UnfitModelError, place_of

WEIGHTS, SETTINGS = "model.safetensors", "config.json"
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_small_encoder(tmp_path_factory.mktemp("whole"), toy_data()))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy, to be broken."""
    return Path(shutil.copytree(whole, tmp_path / "mine"))


def weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def settings(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / SETTINGS).read_text()) | changes
    (folder / SETTINGS).write_text(json.dumps(content))


def without_tokenizer(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in (WEIGHTS, SETTINGS):
            path.unlink()


def cut(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def smaller_table(folder: Path) -> None:
    settings(folder, vocab_size=20)
    key = "embeddings.word_embeddings.weight"
    weights(folder, lambda own: own | {key: own[key][:20].clone()})


BIAS = "encoder.layer.1.output.dense.bias"
WEIGHT = BIAS.replace("bias", "weight")
FIRST = "embeddings.LayerNorm.bias"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "another prefix": (
        lambda f: weights(f, lambda own: {f"foo.{key}": value for key, value in own.items()}),
        rf"of its weights are not in its files, first '{FIRST}' \(found 'foo.{FIRST}' instead\): .*--allow",
    ),
    "more layers in config.json": (
        lambda f: settings(f, num_hidden_layers=3),
        r"16 of its weights are not in its files, first 'encoder.layer.2.attention.output.LayerNorm.bias': .*--allow",
    ),
    "fewer layers in config.json": (
        lambda f: settings(f, num_hidden_layers=1),
        r"its files hold 16 weights more than config.json describes, first 'encoder.layer.1.*--allow",
    ),
    "other shapes": (
        lambda f: settings(f, intermediate_size=7),
        r"of its weights have other shapes than config.json describes, first 'encoder.layer.0.intermediate.dense",
    ),
    "no tokenizer": (without_tokenizer, r"its tokenizer knows special tokens alone.*: copy the tokenizer's files into"),
    "a larger tokenizer": (
        smaller_table,
        r"its tokenizer has \d+ tokens, its model a table of 20 words: .* has number 20: copy the tokenizer's files",
    ),
    "truncated": (cut, r"model.safetensors is truncated or no safetensors file \(.*\): copy or save the weights again"),
    "no weights at all": (
        lambda f: (f / WEIGHTS).write_bytes(b"nothing"),
        r"model.safetensors is truncated or no safetensors file \(.*\): copy or save the weights again",
    ),
    "not finite": (
        lambda f: weights(f, lambda own: own | {BIAS: torch.full_like(own[BIAS], torch.nan)}),
        rf"'{BIAS}' has a number that is not finite: save",
    ),
    "whole numbers": (
        lambda f: weights(f, lambda own: own | {WEIGHT: own[WEIGHT].to(torch.int8)}),
        rf"'{WEIGHT}' holds whole numbers \(I8\), expected floats: save the weights before",
    ),
    "encoder and decoder": (
        lambda f: (f / SETTINGS).write_text(json.dumps({"model_type": "t5"})),
        r"is an encoder with a decoder \(t5\).*expected the folder of an encoder or a decoder alone",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("check", [True, False], ids=["before a plan", "as a trial loads it"])
def test_a_broken_folder_is_one_line_with_the_remedy(folder: Path, kind: str, check: bool) -> None:
    change, message = BROKEN[kind]
    change(folder)
    config = EncoderConfig(name=str(folder))
    with pytest.raises(UnfitModelError, match=message) as caught:
        TransformerEncoder.check(config) if check else TransformerEncoder.build(config, [], 0, folder)
    assert str(caught.value).startswith(f"encoder {str(folder)!r}")
    assert "\n" not in str(caught.value)


def test_what_is_allowed_begins_at_random_by_the_seed(folder: Path) -> None:
    settings(folder, num_hidden_layers=3)
    config = EncoderConfig(name=str(folder), incomplete=True)
    TransformerEncoder.check(config)
    first, again, other = (TransformerEncoder.build(config, [], seed, folder).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    differing = {key for key in first if not torch.equal(first[key], other[key])}
    assert differing
    assert all("layer.2." in key for key in differing)


def test_a_whole_folder_with_a_head_is_loaded_and_so_are_its_first_layers(whole: Path, folder: Path) -> None:
    AutoModelForMaskedLM.from_pretrained(whole).save_pretrained(folder)
    expected = AutoModel.from_pretrained(whole).state_dict()
    for layers in (None, 1):
        config = EncoderConfig(name=str(folder), layers=layers)
        TransformerEncoder.check(config)
        own = TransformerEncoder.build(config, [], 0, folder).transformer.state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in own.items()), layers


def test_each_loading_states_what_was_not_used(whole: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    AutoModelForMaskedLM.from_pretrained(whole).save_pretrained(folder)
    with caplog.at_level("INFO", logger="xmcbench"):
        TransformerEncoder.build(EncoderConfig(name=str(folder)), [], 0, folder)
    assert "missing: 0; misshapen: 0; unexpected: 0; of a head, not used: " in caplog.text
    assert "first cls.predictions" in caplog.text


@pytest.mark.parametrize("name", ["models/mine", "./mine", "mine/model/of/last/week", "no-folder"])
def test_a_folder_that_is_not_there_is_not_looked_up_at_a_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    for load in (TransformerEncoder.check, lambda config: TransformerEncoder.build(config, [], 0, tmp_path)):
        with pytest.raises(UnfitModelError, match=f"'{name}': no such folder") as caught:
            load(EncoderConfig(name=name))
        assert "\n" not in str(caught.value)
    with pytest.raises(UnfitModelError, match=r"no such folder; a model of .* hub is written hub:some/model"):
        place_of("some/model")


def test_a_folder_beside_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "minilm-tuned").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnfitModelError, match=r"no such folder \(did you mean 'minilm-tuned'"):
        place_of("models/minilm-tunned")


def test_a_folder_of_adapters_fetches_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/model"}))
    with pytest.raises(UnfitModelError, match="holds adapters alone: expected the folder of their model, with lora: "):
        TransformerEncoder.check(EncoderConfig(name=str(tmp_path)))


def test_a_model_of_the_hub_is_named_so() -> None:
    assert place_of("hub:sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"


def test_the_operations_of_vectors_of_places_are_counted(whole: Path, tmp_path: Path) -> None:
    """DeBERTa gives its modules a part of a weight; torch's counter failed there, and no DeBERTa could be trained."""
    shutil.copytree(whole, tmp_path / "mine")
    (tmp_path / "mine" / WEIGHTS).unlink()
    table = load_file(whole / WEIGHTS)["embeddings.word_embeddings.weight"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    places = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 32}
    config = DebertaV2Config(vocab_size=len(table), **sizes, **places)
    AutoModel.from_config(config).save_pretrained(tmp_path / "mine")
    encoder = TransformerEncoder.build(EncoderConfig(name=str(tmp_path / "mine")), [], 0, tmp_path)
    assert encoder.flops.linear > 0
    assert all(weight.requires_grad for weight in encoder.parameters())


def test_a_folder_is_checked_without_accelerate_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain install has no accelerate, which transformers needs for models without memory."""
    monkeypatch.setattr("xmcbench.engine.encoders.transformer.find_spec", lambda _: None)
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: False)
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: False)
    TransformerEncoder.check(EncoderConfig(name=str(folder)))
    cut(folder)
    with pytest.raises(UnfitModelError):
        TransformerEncoder.check(EncoderConfig(name=str(folder)))
