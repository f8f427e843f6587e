"""A saved model opens with sentence-transformers where the encoder alone scores, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import make_run, toy_data

from engine.training.method import Toy
from xmcbench import EmbeddingMethod

FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling")
LENGTH = 9  # tokens a query is cut at


class Plain(Toy):
    """The toy method without a module of its own."""

    build_modules = EmbeddingMethod.build_modules
    query_vectors = EmbeddingMethod.query_vectors
    label_vectors = EmbeddingMethod.label_vectors


class TableOnly(Plain):
    """Vectors beside the texts' embeddings, in a table."""

    build_modules = Toy.build_modules
    label_vectors = Toy.label_vectors


class Doubled(Plain):
    """No module, and yet what is scored is not the embedding."""

    def query_vectors(self, embeddings_ND: Tensor) -> Tensor:
        return 2 * embeddings_ND


class Textless(Plain):
    """Labels that no text stands for."""

    encodes_labels = False


def prepared(kind: type[Toy], encoder: dict[str, object], directory: Path, **settings: object) -> Toy:
    """A method that is ready to train."""
    shared = {"encoder": encoder, "batch_size": 20, "learning_rate": 1e-2, "max_query_length": LENGTH}
    method = kind(kind.Config.model_validate(shared | settings))
    method.prepare(toy_data(), make_run(directory, {"steps": 3}))
    return method


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_embeds_as_the_method_does(
    small_encoder: str, tmp_path: Path, pooling: str, normalize: bool
) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    data = toy_data()
    method = prepared(Plain, {"name": small_encoder, "pooling": pooling, "normalize": normalize}, tmp_path)
    method.fit(data, make_run(tmp_path, {"steps": 3}))
    (tmp_path / "model").mkdir()
    method.save(tmp_path / "model")

    tokens = method.encoder.tokenizer.tokens(data.texts, LENGTH)
    assert LENGTH in tokens.lengths  # some are cut
    opened = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    found = opened.encode([data.texts[i] for i in range(len(data.texts))], show_progress_bar=False)
    np.testing.assert_allclose(found, method.embed(tokens).numpy(), rtol=0, atol=1e-5)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5) == normalize

    labels = opened.encode(list(data.label_texts), show_progress_bar=False)
    scores = opened.similarity(found, labels)  # inner products, also of vectors that are not of length 1
    torch.testing.assert_close(scores, method.all_query_vectors(tokens) @ method.index_LD.T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [Toy, TableOnly, Doubled, Textless])
def test_a_model_that_does_more_than_encode_is_not_opened_wrongly(
    small_encoder: str, tmp_path: Path, kind: type[Toy]
) -> None:
    settings = {"classifier": True} if kind is TableOnly else {}
    method = prepared(kind, {"name": small_encoder}, tmp_path, **settings)
    if kind is TableOnly:
        del method.modules["head"]
        assert not method.module_tensors()
    method.index_LD = torch.zeros(1, method.encoder.dimension)
    (tmp_path / "model").mkdir()
    method.save(tmp_path / "model")
    assert not [name for name in FILES if (tmp_path / "model" / name).exists()]
    assert json.loads((tmp_path / "model/tokenizer_config.json").read_text())["model_max_length"] == LENGTH


def test_the_files_are_there_where_the_encoder_alone_scores(small_encoder: str, tmp_path: Path) -> None:
    method = prepared(Plain, {"name": small_encoder}, tmp_path)
    method.index_LD = torch.zeros(1, method.encoder.dimension)
    (tmp_path / "model").mkdir()
    method.save(tmp_path / "model")
    assert all((tmp_path / "model" / name).exists() for name in FILES)
    assert json.loads((tmp_path / "model/tokenizer_config.json").read_text())["model_max_length"] == LENGTH
