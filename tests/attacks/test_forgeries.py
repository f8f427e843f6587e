"""Forged submissions: files and records that agree with each other, and not with the data or with other submissions."""

from __future__ import annotations

import shutil
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench
from reporting.test_submission import CLEAN, keep, submit

from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store


@pytest.fixture
def two(bench: Bench, capsys: pytest.CaptureFixture[str]) -> tuple[Store, Record, Record]:
    """Two accepted trials of two seeds."""
    made = bench.runner(bench.suite(["fake-ok"], seeds=[0, 1]), debug=True)
    for record in made.run(made.plan(), bench.heard):
        keep(bench, record, provenance={**record.provenance, **CLEAN})
        assert submit(bench, capsys, record.key)[0] == 0
    store = Store(bench.root / "accepted")
    first, second = store.records()
    return store, first, second


def checked(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, _, wrong = submit(bench, capsys, "--check", *arguments)
    assert (code != 0) == bool(wrong)
    return wrong


def test_no_submission_takes_the_place_of_another(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, second = two
    assert checked(bench, capsys) == ""
    sample = {"settings": {}, "quality": 0.1, "trial": first.key, "budget": {}}
    store.write_record(second.model_copy(update={"chosen": {"samples": [sample]}}))
    assert f"its tuning names {first.key}, an accepted trial" in checked(bench, capsys)
    store.write_record(second.model_copy(update={"trained_by": "f" * 16}))
    assert "its model is of ffffffffffffffff, which is no accepted training of it" in checked(bench, capsys)
    store.write_record(second.model_copy(update={"trained_by": first.key}))
    assert "which is no accepted training of it" in checked(bench, capsys), "another seed is another training"
    renamed = second.model_copy(update={"trial": second.trial.model_copy(update={"dataset": "fake-020"})})
    store.write_record(renamed)
    assert "fake-020" in checked(bench, capsys)


def test_another_seed_has_other_predictions(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, second = two
    copied = {name: getattr(first, name) for name in ("metrics", "intervals", "digests")}
    trained = {"encoder_tokens": 5, "encoder_flops": 5, "flops": 5 + first.spent["scoring_flops"]}
    for record in two[1:]:
        changes = {"spent": record.spent | trained, "num_parameters": 1}
        store.write_record(record.model_copy(update=changes))
    second = store.record(second.key)
    assert second is not None
    for name in ("predictions.npz", "resampled.safetensors"):
        shutil.copy(store.directory(first.key) / name, store.directory(second.key) / name)
    store.write_record(second.model_copy(update=copied))
    assert "which has another seed" in checked(bench, capsys)


def test_a_record_that_can_be_read_in_two_ways_is_named(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    path = two[0].directory(two[1].key) / "record.json"
    body = (
        path.read_bytes()
        .rpartition(b',\n "digest"')[0]
        .replace(b'"metrics": {', b'"metrics": {"P@1": 0.99},\n "metrics": {')
    )
    path.write_bytes(body + b',\n "digest": "' + sha256(body).hexdigest().encode() + b'"\n}\n')
    assert "record.json: found 'metrics' twice" in checked(bench, capsys)


@pytest.mark.parametrize("text", ["", "trust me", "0" * 64, "\x1b[31m", f"{'0' * 64}  predictions.npz\n"])
def test_a_digest_in_place_of_predictions_is_that_of_the_record(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    folder = two[0].directory(two[1].key)
    (folder / "predictions.sha256").write_text(text)
    assert "expected one of predictions.npz and predictions.sha256" in checked(bench, capsys)
    (folder / "predictions.npz").unlink()
    wrong = checked(bench, capsys)
    assert "predictions.sha256 does not hold the digest that the record has" in wrong
    assert "its predictions are not here" in wrong, "a small file has to be there"


def test_counts_that_the_dataset_contradicts_are_named(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = two
    store.write_record(first.model_copy(update={"test_texts_in_train": 7}))
    assert "it says that 7 test texts are in the training part, 0 are" in checked(bench, capsys)
    store.write_record(first.model_copy(update={"spent": first.spent | {"queries": 10**6, "epochs": 0.5}}))
    assert "it saw 1,000,000 training queries in 0.5 epochs of" in checked(bench, capsys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"bogus": 1}}, "its setting 'bogus' is 1"),
        ({"versions": {"method": 1, "luck": 1}}, "it is a result of luck 1, method 1, this code has method 1"),
        ({"versions": {"method": 1, "selection": 2, "evaluator Best": 1}}, "it is a result of"),
    ],
)
def test_a_new_submission_is_of_this_code(
    bench: Bench,
    two: tuple[Store, Record, Record],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    store, first, _ = two
    base = bench.root / "base"
    base.mkdir()
    assert checked(bench, capsys, "--base", str(base)) == ""
    trial = first.trial.changed(**changes)
    shutil.copytree(store.directory(first.key), store.directory(trial.key))
    store.write_record(first.model_copy(update={"trial": trial, "key": trial.key}))
    shutil.rmtree(store.directory(first.key))
    assert message in checked(bench, capsys, "--base", str(base))


def test_predictions_of_no_labels_are_a_problem_of_one_submission(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = two
    none = np.zeros((len(store.predictions(first)[0]), 0))
    digest = store.write_predictions(
        first.key, Predictions(none.astype(np.int32), none.astype(np.float32)), first.truth_hash
    )
    store.write_record(first.model_copy(update={"digests": {**first.digests, "predictions.npz": digest}}))
    assert "needs the best 1 labels per query, the predictions hold 0" in checked(bench, capsys)
