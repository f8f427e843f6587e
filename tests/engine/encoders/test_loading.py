"""Encoders of the user's: loaded whole, or refused in a line that names the folder and what would mend it."""

from __future__ import annotations

import json
import pickle
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
from transformers import AutoModel, AutoModelForMaskedLM, DebertaV2Config, RobertaConfig, RobertaModel

from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.errors import XMCBenchError
from xmcbench.files.pretrained import UnfitModelError, place_of

WEIGHTS, SETTINGS, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
INDEX = f"{WEIGHTS}.index.json"
TABLE = "embeddings.word_embeddings.weight"
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
    weights(folder, lambda own: own | {TABLE: own[TABLE][:20].clone()})


def tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the vocabulary and rules of a tokenizer."""
    content = json.loads((folder / TOKENIZER).read_text())
    change(content)
    (folder / TOKENIZER).write_text(json.dumps(content))


def start_beyond(content: dict[str, Any]) -> None:
    """Let every text begin with a number that no table has."""
    content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [9999]


def without_padding(folder: Path) -> None:
    for path in folder.glob("*.json"):
        kept = {key: value for key, value in json.loads(path.read_text()).items() if key != "pad_token"}
        path.write_text(json.dumps(kept))


def sharded(folder: Path, change: Callable[[dict[str, str]], object] = dict) -> None:
    """Two files of weights with an index, whose entries may be changed."""
    own = load_file(folder / WEIGHTS)
    parts = {f"model-0000{part + 1}-of-00002.safetensors": sorted(own)[part::2] for part in range(2)}
    for name, keys in parts.items():
        save_file({key: own[key] for key in keys}, folder / name, metadata={"format": "pt"})
    places = {key: name for name, keys in parts.items() for key in keys}
    change(places)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / WEIGHTS).unlink()


def without_a_shard(folder: Path) -> None:
    sharded(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def instead(folder: Path, name: str, content: bytes = b"x") -> None:
    """Another file in place of the weights."""
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(content)


def with_adapters(folder: Path, whole: bool) -> None:
    if not whole:
        (folder / WEIGHTS).unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/model"}))


def with_code(folder: Path) -> None:
    settings(folder, model_type="mine", auto_map={"AutoConfig": "code.C", "AutoModel": "code.M"})
    (folder / "code.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")


class Pickled:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (print, ("ran",))


BIAS = "encoder.layer.1.output.dense.bias"
WEIGHT = BIAS.replace("bias", "weight")
FIRST = "embeddings.LayerNorm.bias"
NORM = "embeddings.LayerNorm.weight"
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
        rf"'{BIAS}' has a number that is not finite in float32: save",
    ),
    "beyond float32": (
        lambda f: weights(f, lambda own: own | {TABLE: own[TABLE].double() * 1e300}),
        rf"'{TABLE}' has a number that is not finite in float32: save",
    ),
    "sums beyond float32": (
        lambda f: weights(f, lambda own: {k: v * 1e30 if v.ndim == 2 else v for k, v in own.items()}),
        "the vectors of words are not finite: save its weights again",
    ),
    "zeros": (
        lambda f: weights(f, lambda own: {key: torch.zeros_like(value) for key, value in own.items()}),
        rf"all words have the same vector: all rows of '{TABLE}' are equal: expected weights of a trained model",
    ),
    "one number": (
        lambda f: weights(f, lambda own: {key: torch.full_like(value, 0.02) for key, value in own.items()}),
        rf"all words have the same vector: all rows of '{TABLE}' are equal: expected weights of a trained model",
    ),
    "equal words": (
        lambda f: weights(f, lambda own: own | {TABLE: own[TABLE][:1].repeat(len(own[TABLE]), 1)}),
        rf"all words have the same vector: all rows of '{TABLE}' are equal: expected weights of a trained model",
    ),
    "a layer of zeros": (
        lambda f: weights(f, lambda own: {k: torch.zeros_like(v) if "layer.1." in k else v for k, v in own.items()}),
        "all words have the same vector: all rows of 'encoder.layer.1.attention.self.query.weight' are equal",
    ),
    "a norm of zeros": (
        lambda f: weights(f, lambda own: own | {NORM: torch.zeros_like(own[NORM])}),
        "all words have the same vector: expected weights of a trained model, save them again",
    ),
    "whole numbers": (
        lambda f: weights(f, lambda own: own | {WEIGHT: own[WEIGHT].to(torch.int8)}),
        rf"'{WEIGHT}' holds numbers of type I8, expected F64, F32, F16, BF16: save the weights before",
    ),
    "a bias of whole numbers": (
        lambda f: weights(f, lambda own: own | {BIAS: own[BIAS].to(torch.int64)}),
        rf"'{BIAS}' holds numbers of type I64, expected F64, F32, F16, BF16: save the weights before",
    ),
    "eight bits": (
        lambda f: weights(f, lambda own: own | {WEIGHT: own[WEIGHT].to(torch.float8_e4m3fn)}),
        rf"'{WEIGHT}' holds numbers of type F8_E4M3, expected F64, F32, F16, BF16: save the weights before",
    ),
    "another architecture": (
        lambda f: settings(f, model_type="camembert"),
        "has architectures: BertModel, which is a bert, and model_type: camembert: expected those of one model",
    ),
    "an unknown activation": (
        lambda f: settings(f, hidden_act="reluu"),
        "cannot be loaded: unknown 'reluu' in a settings file",
    ),
    "a much smaller tokenizer": (
        lambda f: tokenizer(f, lambda t: t["model"].update(vocab=dict(list(t["model"]["vocab"].items())[:20]))),
        r"its tokenizer has \d+ tokens, its model a table of \d+ words, many of which no text has: copy.*--allow",
    ),
    "an empty vocabulary": (
        lambda f: tokenizer(f, lambda t: t["model"].update(vocab={})),
        "its tokenizer knows special tokens alone, so that all texts are alike: copy the tokenizer's files into",
    ),
    "a first token beyond the table": (
        lambda f: tokenizer(f, start_beyond),
        r"its tokenizer gives texts the number 9999, its model has a table of \d+ words: copy the tokenizer's files",
    ),
    "no padding": (without_padding, "its tokenizer has no padding token, expected pad_token in tokenizer_config.json"),
    "no tokenizer.json": (
        lambda f: (f / TOKENIZER).unlink(),
        "cannot be loaded: found no tokenizer.json: copy the tokenizer's files into the folder",
    ),
    "a lost shard": (without_a_shard, r"json names model-00002-of-00002.safetensors, which is not in the folder: copy"),
    "an index of more": (
        lambda f: sharded(f, lambda places: places.update({"more": places[BIAS]})),
        r"json says that 'more' is in model-0000\d-of-00002.safetensors, which lacks it: save the weights again",
    ),
    "an index of elsewhere": (
        lambda f: sharded(f, lambda places: places.update({BIAS: "../whole/model.safetensors"})),
        r"json names ../whole/model.safetensors, which lies outside of the folder: copy the whole folder again",
    ),
    "an index of nothing": (
        lambda f: instead(f, INDEX, b"{}"),
        "json: expected JSON with a weight_map: copy the folder again",
    ),
    "another format": (
        lambda f: instead(f, "model.gguf"),
        r"found no model.safetensors in the folder \(found model.gguf instead\): expected weights that save_pretrained",
    ),
    "a file that is not there": (
        lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).symlink_to("nowhere")),
        "found no model.safetensors in the folder: expected",
    ),
    "more than weights": (
        lambda f: instead(f, "pytorch_model.bin", pickle.dumps(Pickled())),
        "pytorch_model.bin is broken or holds more than weights, which is not run: save it as model.safetensors",
    ),
    "Git LFS": (
        lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "model.safetensors is a pointer of Git LFS, not the file: fetch it with git lfs pull",
    ),
    "adapters with settings": (
        lambda f: with_adapters(f, whole=False),
        "holds adapters alone: expected the folder of their model, with lora: {adapters: ",
    ),
    "adapters beside a model": (
        lambda f: with_adapters(f, whole=True),
        "holds a whole model and adapters .*, expected one of the two: move the adapters to a folder of their own",
    ),
    "code of its own": (
        with_code,
        "its config.json asks for Python code of its own, which is not run: expected",
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
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_in_shards_and_of_other_floats_are_those_of_one_file(folder: Path, kind: torch.dtype) -> None:
    weights(folder, lambda own: {key: value.to(kind) for key, value in own.items()})
    expected = {key: value.float() for key, value in load_file(folder / WEIGHTS).items()}
    sharded(folder)
    config = EncoderConfig(name=str(folder))
    TransformerEncoder.check(config)
    own = TransformerEncoder.build(config, [], 0, folder).transformer.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in own.items())


def test_a_large_folder_is_read_a_weight_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its words are tried when a trial loads it."""
    monkeypatch.setattr("xmcbench.files.pretrained.LARGE", 0)
    config = EncoderConfig(name=str(folder))
    TransformerEncoder.check(config)
    weights(folder, lambda own: {key: torch.zeros_like(value) for key, value in own.items()})
    TransformerEncoder.check(config)
    with pytest.raises(UnfitModelError, match="all words have the same vector"):
        TransformerEncoder.build(config, [], 0, folder)
    weights(folder, lambda own: own | {BIAS: torch.full_like(own[BIAS], torch.inf)})
    with pytest.raises(UnfitModelError, match=f"{WEIGHTS}: '{BIAS}' has a number that is not finite"):
        TransformerEncoder.check(config)


def test_neither_a_prompt_nor_a_pooling_hides_that_all_words_are_alike(folder: Path) -> None:
    prompt = "fe ba ko " * 30
    TransformerEncoder.build(EncoderConfig(name=str(folder), query_prefix=prompt), [], 0, folder)
    weights(folder, lambda own: own | {TABLE: torch.zeros_like(own[TABLE])})
    for config in (
        EncoderConfig(name=str(folder), query_prefix=prompt),
        EncoderConfig(name=str(folder), pooling="cls"),
    ):
        with pytest.raises(UnfitModelError, match="all words have the same vector"):
            TransformerEncoder.build(config, [], 0, folder)


def test_places_that_stand_for_padding_are_no_places_of_words(folder: Path) -> None:
    """RoBERTa's first positions are not of words, so that its texts are shorter than its table."""
    whole = TransformerEncoder.build(EncoderConfig(name=str(folder)), [], 0, folder)
    whole.check_length(32)
    table = len(load_file(folder / WEIGHTS)[TABLE])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = RobertaModel(RobertaConfig(vocab_size=table, max_position_embeddings=32, pad_token_id=0, **sizes))
    model.save_pretrained(folder)
    encoder = TransformerEncoder.build(EncoderConfig(name=str(folder)), [], 0, folder)
    encoder(torch.full((1, 31), 5))
    encoder.check_length(31)
    with pytest.raises(XMCBenchError, match="reads at most 31 tokens, found 32"):
        encoder.check_length(32)


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
