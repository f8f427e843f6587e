"""Fusion as a method: its parts share one budget, and the rule is fitted on queries that no part saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench
from fitting import assert_saved_predicts_the_same
from pydantic import ValidationError
from toy import LABELS, QUERIES, make_run

from xmcbench import Run, XMCBenchError
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.flops import charged_to_open_stages
from xmcbench.errors import UnknownNameError
from xmcbench.evaluation import drop_ignored, inverse_propensity
from xmcbench.evaluation.fusion import Tree, Weighted, fit_fusion
from xmcbench.plugins.registry import ONLY, registry
from xmcbench.trial.record import Status
from xmcbench_plugins.second_stage import Fuse


def made(encoder: str, **settings: Any) -> Fuse:
    dual = {"method": "dexml", "encoder": {"name": encoder}, "negatives": "in-batch", "batch_size": 20}
    parts = [dual, {"method": "popular"}]
    return Fuse(Fuse.Config.model_validate({"parts": parts, "held_out": 20, **settings}))


def fitted(encoder: str, data: TrainingData, run: Run, **settings: Any) -> Fuse:
    method = made(encoder, **settings)
    method.fit(data, run)
    return method


@pytest.mark.parametrize("rule", ["weighted", "tree"])
def test_the_rule_is_fitted_on_queries_that_no_part_saw(
    rule: Any, data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, {"steps": 20})
    method, seen = made(small_encoder, rule=rule), []
    for part in method.parts:
        fit = part.fit

        def spied(train: TrainingData, own: Run, fit: Any = fit) -> None:
            seen.append(set(train.texts))
            fit(train, own)

        monkeypatch.setattr(part, "fit", spied)
    method.fit(data, run)
    rows = np.sort(run.rng("fuse", "held out").permutation(QUERIES)[:20])
    held_out = data.rows(rows)
    others = {data.texts[i] for i in set(range(QUERIES)) - set(rows.tolist())}
    assert seen == [others, others]
    answers = [drop_ignored(part.predict(held_out.texts, LABELS), held_out.ignore, LABELS) for part in method.parts]
    weights = inverse_propensity(data.targets, data.card.propensity_a, data.card.propensity_b)
    wanted = fit_fusion(rule, answers, held_out.targets, weights, "nDCG@5")
    assert isinstance(method.fusion, Tree if rule == "tree" else Weighted)
    found = method.predict(data.texts, 7)
    expected = wanted.fuse([part.predict(data.texts, LABELS) for part in method.parts], 7)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.scores, expected.scores)


def test_parts_share_the_budget_and_held_out_queries_are_charged(
    data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, method, tokens = make_run(tmp_path, {"steps": 40}), made(small_encoder, share=0.5), []
    fit_rule = method._fit_rule

    def spied(train: TrainingData, rows: np.ndarray, run: Run) -> Any:
        tokens.append(run.ledger.encoder_tokens)
        fusion = fit_rule(train, rows, run)
        tokens.append(run.ledger.encoder_tokens)
        dual: Any = method.parts[0]
        tokens.append(int(dual.encoder.tokenizer.tokens(train.rows(rows).texts, dual.query_length).lengths.sum()))
        return fusion

    monkeypatch.setattr(method, "_fit_rule", spied)
    method.fit(data, run)
    assert run.ledger.steps == 10  # a quarter: `popular` needs none of its own
    before, after, held_out = tokens
    assert after - before == held_out > 0


def reads(method: Any, tokens: list[int]) -> None:
    """Note the real tokens of each pass of the cross-encoder `method` in `tokens`."""
    fit = method.fit

    def spied(train: TrainingData, run: Run) -> None:
        fit(train, run)
        count = lambda _, args: tokens.append(int(args[0]["attention_mask"].sum()))  # noqa: E731
        method.model.register_forward_pre_hook(count)

    method.fit = spied


def test_everything_that_parts_compute_about_held_out_queries_is_charged(
    data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of a cross-encoder's pairs, as its own passes count them; scores of searches; products of words."""
    pytest.importorskip("sentence_transformers")
    first = {"method": "untrained", "encoder": {"name": small_encoder}}
    kinds: list[dict[str, Any]] = [
        {"method": "cross-encoder", "first": first, "model": small_encoder, "max_length": 32, "shortlist": 6},
        {"method": "memory", "first": first},
        {"method": "tfidf-nn"},
    ]
    method = Fuse(Fuse.Config.model_validate({"parts": kinds, "held_out": 20}))
    read: list[int] = []
    reads(method.parts[0], read)
    run, fit_rule, ledgers = make_run(tmp_path, {"encoder_tokens": 10**9}), method._fit_rule, []

    def spied(train: TrainingData, rows: np.ndarray, run: Run) -> Any:
        ledgers.append(run.ledger.as_dict())
        fusion = fit_rule(train, rows, run)
        ledgers.append(run.ledger.as_dict())
        dual: Any = method.parts[1]
        ledgers.append(dual.first.encoder.tokenizer.tokens(train.rows(rows).texts, dual.first.query_length).lengths)
        return fusion

    monkeypatch.setattr(method, "_fit_rule", spied)
    with charged_to_open_stages(run.ledger):
        method.fit(data, run)
    before, after, lengths_N = ledgers
    pairs, cross, memory = sum(read), method.parts[0], method.parts[1]
    assert pairs > 0
    assert after["encoder_tokens"] - before["encoder_tokens"] == pairs + 2 * lengths_N.sum()  # both first methods
    queries = 2 * memory.first.encoder.flops(lengths_N)
    assert after["encoder_flops"] - before["encoder_flops"] == queries
    of_pairs = after["module_flops"] - before["module_flops"]
    assert pairs * cross._operations < of_pairs < 2 * pairs * cross._operations  # attention and padding count too
    scored = 2 * len(lengths_N) * 32 * (2 * LABELS + QUERIES - 20)  # labels of both, and the keys of the memory
    words = after["scoring_flops"] - before["scoring_flops"] - scored
    held_out, others = (data.rows(rows).texts for rows in _split(run))
    shared = sum(len(set(one.split()) & set(other.split())) for one in held_out for other in others)
    assert words == 2 * shared > 0


def _split(run: Run) -> tuple[np.ndarray, np.ndarray]:
    rows = np.sort(run.rng("fuse", "held out").permutation(QUERIES)[:20])
    return rows, np.setdiff1d(np.arange(QUERIES), rows)


def test_asking_a_cross_encoder_that_does_not_fit_is_refused(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    first = {"method": "untrained", "encoder": {"name": small_encoder}}
    part = {"method": "cross-encoder", "first": first, "model": small_encoder, "max_length": 32, "epochs": 0}
    method = Fuse(Fuse.Config.model_validate({"parts": [part, {"method": "popular"}], "held_out": 20}))
    run = make_run(tmp_path, {"encoder_tokens": 1500})
    method.fit(data, run)
    assert method.fusion.name == "reciprocal-ranks"
    assert run.ledger.refused_pass == 1
    assert not run.ledger.over(run.budget)


def test_without_budget_left_ranks_are_fused(data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(small_encoder, data, make_run(tmp_path, {"encoder_tokens": 1}))
    assert method.fusion.name == "reciprocal-ranks"


@pytest.mark.parametrize("rule", ["weighted", "tree", "reciprocal-ranks"])
def test_what_is_saved_predicts_the_same(rule: str, data: TrainingData, small_encoder: str, tmp_path: Path) -> None:
    method = fitted(small_encoder, data, make_run(tmp_path, {"steps": 10}), rule=rule)
    assert_saved_predicts_the_same(method, made(small_encoder, rule=rule), data.texts, tmp_path)


def test_versions_and_parameters_are_those_of_all_parts(small_encoder: str) -> None:
    method = made(small_encoder)
    parts = [type(part).versions(part.config) for part in method.parts]
    assert Fuse.versions(method.config) == {
        "method": 2,
        **{f"part 1 {name}": version for name, version in parts[0].items()},
        **{f"part 2 {name}": version for name, version in parts[1].items()},
    }
    assert Fuse.Config.model_validate(method.config.model_dump(mode="json")) == method.config


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"parts": [{"method": "popular"}]}, "at least 2 items"),
        ({"parts": [{"method": "popular"}, {}]}, "missing key 'method'"),
        (
            {"parts": [{"method": "popular"}, {"method": "tfidf-nn", "power_": 1}]},
            r"power_: unknown key \(did you mean 'power'",
        ),
        ({"parts": [{"method": "popular"}] * 2, "rule": "best"}, "weighted"),
        ({"parts": [{"method": "popular"}] * 5}, "rule: weighted takes at most 4 parts, found 5"),
    ],
)
def test_wrong_parts_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Fuse.Config.model_validate(wrong)


def test_unknown_names_and_more_queries_than_there_are_are_one_line(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="populr"):
        Fuse.Config.model_validate({"parts": [{"method": "populr"}, {"method": "popular"}]})
    with pytest.raises(UnknownNameError, match="nDCK@5"):
        made(small_encoder, metric="nDCK@5")
    with pytest.raises(XMCBenchError, match="held_out is 60, expected fewer than the 60 training queries of toy"):
        fitted(small_encoder, data, make_run(tmp_path, {"steps": 2}), held_out=60)


def test_a_trial_of_it_is_a_trial_like_any_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ONLY, "xmcbench-fakes,xmcbench")
    registry.cache_clear()
    parts = [{"method": "fake-ok"}, {"method": "fake-rare"}]
    methods = {"fused": {"method": "fuse", "parts": parts, "rule": "tree", "held_out": 12}}
    (record,) = bench.run(bench.suite(methods), debug=True).values()
    assert record.status is Status.OK, record.failure
    assert record.metrics
