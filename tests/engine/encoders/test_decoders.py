"""Decoders as encoders: poolings, prefixes, training, and what is refused; on tiny ones with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fitting import unbroken_and_resumed
from toy import toy_data
from transformers import (
    AutoModel,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    T5Config,
    T5Model,
)

from engine.encoders.test_sentence_layout import Plain, prepared
from engine.training.method import Toy
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.tokenizer import train_tokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.errors import XMCBenchError
from xmcbench.errors.secrets import redact

DATA = toy_data()
DECODERS: dict[str, type[PreTrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "mistral": MistralConfig}
POOLINGS = ["weightedmean", "lasttoken"]


def saved_decoder(kind: str, directory: Path) -> str:
    """Write a decoder of two layers of 32 units and its tokenizer; return its path, an encoder's name."""
    tokenizer = train_tokenizer([*DATA.texts, *DATA.label_texts])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    settings = DECODERS[kind](vocab_size=len(tokenizer), max_position_embeddings=64, pad_token_id=0, **sizes, **heads)
    AutoModel.from_config(settings).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_decoder(request.param, tmp_path_factory.mktemp("decoder"))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_texts_together_have_the_vectors_of_the_equation(decoder: str, pooling: str) -> None:
    """Of each text alone, without padding: the last state, or the mean of states with weights 1, 2, ..."""
    encoder = TransformerEncoder.load(EncoderConfig(name=decoder, pooling=pooling, normalize=False), Path(decoder))
    tokens = encoder.tokenizer.tokens(DATA.texts, 16)
    found = embed_all(encoder, tokens, precision="float32", micro_batch_tokens=10**6)
    assert len(set(tokens.lengths.tolist())) > 3
    plain = AutoModel.from_pretrained(decoder).eval()
    for row, ids in enumerate(encoder.tokenizer.at(16)(DATA.texts)):
        with torch.inference_mode():
            states = plain(torch.tensor([ids])).last_hidden_state[0]
        places = torch.arange(1.0, len(ids) + 1)
        wanted = states[-1] if pooling == "lasttoken" else (places @ states) / places.sum()
        torch.testing.assert_close(found[row], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_places_beyond_256_count_in_bf16(pooling: str, tmp_path: Path) -> None:
    """In bf16 257 is 256: counted so, the last token would be several."""
    encoder = TransformerEncoder.load(EncoderConfig(name=saved_decoder("llama", tmp_path), pooling=pooling), tmp_path)
    states = torch.randn(1, 400, 32, dtype=torch.bfloat16)
    encoder.transformer.forward = lambda **_: type("Output", (), {"last_hidden_state": states})
    mask = torch.arange(400)[None] < 380
    found = encoder.eval()(torch.ones(1, 400, dtype=torch.int64), mask)[0]
    places = torch.arange(1.0, 381)
    wanted = states[0, 379].float() if pooling == "lasttoken" else places @ states[0, :380].float()
    torch.testing.assert_close(found, wanted / wanted.norm(), rtol=1e-4, atol=1e-5)


def test_prefixes_are_part_of_the_texts(decoder: str, tmp_path: Path) -> None:
    config = EncoderConfig(name=decoder, pooling="lasttoken", query_prefix="ba da ", label_prefix="fi ")
    encoder = TransformerEncoder.build(config, [], 0, tmp_path)
    plain = TransformerEncoder.build(EncoderConfig(name=decoder), [], 0, tmp_path).tokenizer.at(16)
    assert encoder.tokenizer.at(16)(["gu"]) == plain(["ba da gu"]) != plain(["gu"])
    assert encoder.label_tokenizer.at(16)(["gu"]) == plain(["fi gu"])
    assert TransformerEncoder.prompts_of(config) == {"query": "ba da ", "document": "fi "}  # which the plan counts
    encoder.save(tmp_path)
    assert TransformerEncoder.load(config, tmp_path).tokenizer.at(16)(["gu"]) == plain(["ba da gu"])


def test_every_text_ends_with_the_ending(decoder: str, tmp_path: Path) -> None:
    config = EncoderConfig(name=decoder, pooling="lasttoken", ending="[UNK]")
    encoder = TransformerEncoder.build(config, [], 0, tmp_path)
    plain = TransformerEncoder.build(EncoderConfig(name=decoder), [], 0, tmp_path).tokenizer
    end = plain.tokenizer.convert_tokens_to_ids("[UNK]")
    for length in (4, 64):
        cut, whole = encoder.tokenizer.at(length)(DATA.texts), plain.at(64)(DATA.texts)
        kept = [ids[: length - 1] for ids in whole]
        assert [ids[-1] for ids in cut] == [end] * len(cut)
        assert [len(ids) for ids in cut] == [len(ids) + 1 for ids in kept]
    encoder.save(tmp_path)
    assert TransformerEncoder.load(config, tmp_path).tokenizer.at(16)(["gu"]) == encoder.tokenizer.at(16)(["gu"])
    assert AutoTokenizer.from_pretrained(tmp_path)("gu")["input_ids"][-1] == end
    with pytest.raises(XMCBenchError, match=r"its tokenizer has no token '</s>'"):
        TransformerEncoder.build(config.model_copy(update={"ending": "</s>"}), [], 0, tmp_path)


def test_without_prefixes_a_configuration_is_what_it_was() -> None:
    assert "prefix" not in EncoderConfig(name="tiny").model_dump_json()
    assert EncoderConfig(name="tiny", query_prefix="a").model_dump()["query_prefix"] == "a"
    with pytest.raises(ValueError, match="query_prefix is a setting of transformers, not of static"):
        EncoderConfig(query_prefix="a")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_killed_and_resumed_equals_unbroken(decoder: str, precision: str, tmp_path: Path) -> None:
    encoder = {"name": decoder, "pooling": "lasttoken", "query_prefix": "ba ", "dropout": 0.1}
    settings = {"encoder": encoder, "precision": precision, "activation_gib": 0.0, "batch_size": 20}
    unbroken, resumed = unbroken_and_resumed(lambda: Toy(Toy.Config.model_validate(settings)), DATA, tmp_path)
    assert 0 < resumed.calls < unbroken.calls
    weights, first = resumed.encoder.state_dict(), AutoModel.from_pretrained(decoder).state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in unbroken.encoder.state_dict().items())
    assert not torch.equal(weights["transformer.norm.weight"], first["norm.weight"])
    found, wanted = resumed.predict(DATA.texts, 10), unbroken.predict(DATA.texts, 10)
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.scores, wanted.scores)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_sentence_transformers_opens_a_saved_one(decoder: str, pooling: str, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    method = prepared(
        Plain, {"name": decoder, "pooling": pooling, "query_prefix": "ba ", "label_prefix": "fi "}, tmp_path
    )
    method.index_LD = method.embed(method.labels)
    method.save(tmp_path / "model")
    model = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    found = model.encode(list(DATA.texts), prompt_name="query", convert_to_tensor=True)
    torch.testing.assert_close(found, method.embed_texts(DATA.texts), rtol=1e-4, atol=1e-5)


def test_a_tokenizer_without_a_padding_token_is_one_line(tmp_path: Path) -> None:
    name = saved_decoder("llama", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(name)
    with pytest.raises(XMCBenchError, match="has no padding token, expected pad_token in") as caught:
        TransformerEncoder.build(EncoderConfig(name=name), [], 0, tmp_path)
    assert "\n" not in str(caught.value)
    assert redact(str(caught.value)) == str(caught.value)  # which takes what follows `token:` for a secret


def test_an_ending_that_the_model_does_not_know_is_one_line(tmp_path: Path) -> None:
    name = saved_decoder("qwen2", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.save_pretrained(name)
    with pytest.raises(
        XMCBenchError, match=r"ending: '<end>' has number \d+ in its tokenizer, expected a number below"
    ):
        TransformerEncoder.build(EncoderConfig(name=name, pooling="mean", ending="<end>"), [], 0, tmp_path)


def test_a_model_without_a_pooling_is_one_line(tmp_path: Path) -> None:
    name = saved_decoder("llama", tmp_path)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(XMCBenchError, match="expected a module Pooling after Transformer, found none"):
        TransformerEncoder.build(EncoderConfig(name=name, pooling="own"), [], 0, tmp_path)


def test_an_encoder_with_a_decoder_is_one_line(tmp_path: Path) -> None:
    T5Model(T5Config(vocab_size=50, d_model=16, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(XMCBenchError, match=r"is an encoder with a decoder \(t5\)"):
        TransformerEncoder.build(EncoderConfig(name=str(tmp_path)), [], 0, tmp_path)
