"""The untrained encoder ranks by the inner products of its embeddings, and spends nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy import make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.search import faiss
from xmcbench.runs.predicting import Sample
from xmcbench_plugins.untrained import Untrained


def test_it_ranks_by_the_encoder_as_it_is(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method = Untrained(Untrained.Config(encoder=small_encoder))
    run = make_run(tmp_path, {"steps": 1})
    method.fit(data, run)
    encoder = TransformerEncoder.load(EncoderConfig(name=small_encoder), Path(small_encoder))
    weights = encoder.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in method.encoder.state_dict().items())
    queries = method.embed(encoder.tokenizer.tokens(data.texts, data.card.max_length)).numpy()
    labels = method.embed(encoder.tokenizer.tokens(data.label_texts, data.card.max_label_length)).numpy()
    found = method.predict(data.texts, 5)
    scores = np.take_along_axis(queries @ labels.T, found.indices.astype(np.int64), axis=1)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5)
    np.testing.assert_allclose(found.scores, -np.sort(-(queries @ labels.T), axis=1)[:, :5], rtol=1e-5)
    assert (run.ledger.steps, run.ledger.encoder_tokens, run.ledger.device_seconds) == (0, 0, 0)


def test_predictions_of_approximate_search_have_a_measured_recall(
    small_encoder: str, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Untrained(Untrained.Config(encoder=small_encoder, search="faiss-ivf"))
    method.fit(data, make_run(tmp_path, {"steps": 1}))
    assert Sample.draw(data.texts, method.predict(data.texts, 20)).recall(method) == 1.0  # few labels are one cluster
    monkeypatch.setattr(faiss, "num_clusters", lambda _: 8)
    monkeypatch.setattr(faiss, "PROBES", 1)  # a query searches one cluster of eight
    found = method.predict(data.texts, 20)
    recall = Sample.draw(data.texts, found).recall(method)
    assert recall is not None
    assert 0 < recall < 0.5
    exact = Untrained(Untrained.Config(encoder=small_encoder))
    exact.fit(data, make_run(tmp_path, {"steps": 1}))
    assert Sample.draw(data.texts, exact.predict(data.texts, 20)).recall(exact) is None


def test_equal_models_are_equal_files(small_encoder: str, data: TrainingData, tmp_path: Path) -> None:
    method, files = Untrained(Untrained.Config(encoder=small_encoder)), set()
    method.fit(data, make_run(tmp_path, {"steps": 1}))
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        method.save(tmp_path / str(number))
        files.add((tmp_path / str(number) / "vectors.safetensors").read_bytes())
    assert len(files) == 1
