"""Forged submissions: files and records that agree with each other, and not with the data or with other submissions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.bench import Bench
from plugins.board.test_submission import CLEAN, keep, submit

from xmcbench.trial.packed import Packed
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record, encode
from xmcbench.trial.store import PREDICTIONS, RESAMPLED, Store
from xmcbench_plugins.board.packing import add_packed, packed_path


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


def rewrite(store: Store, record: Record, files_of: Record | None = None) -> None:
    """Put a record in the place of that of its key, with the files of another one or its own."""
    packed, key = Packed(store.root), (files_of or record).key
    files = {name: packed.file(key, name) or b"" for name in (PREDICTIONS, RESAMPLED)}
    add_packed(store.root, [(record, encode(record), files)])


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
    rewrite(store, second.model_copy(update={"chosen": {"samples": [sample]}}))
    assert f"its tuning names {first.key}, an accepted trial" in checked(bench, capsys)
    rewrite(store, second.model_copy(update={"trained_by": "f" * 16}))
    assert "its model is of ffffffffffffffff, which is no accepted training of it" in checked(bench, capsys)
    rewrite(store, second.model_copy(update={"trained_by": first.key}))
    assert "which is no accepted training of it" in checked(bench, capsys), "another seed is another training"
    renamed = second.model_copy(update={"trial": second.trial.model_copy(update={"dataset": "fake-020"})})
    rewrite(store, renamed)
    assert "fake-020" in checked(bench, capsys)


def test_another_seed_has_other_predictions(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, second = two
    copied = {name: getattr(first, name) for name in ("metrics", "intervals", "digests")}
    trained = {"encoder_tokens": 5, "encoder_flops": 5, "flops": 5 + first.spent["scoring_flops"]}
    for record, changes in ((first, {}), (second, copied)):
        rewrite(
            store, record.model_copy(update={"spent": record.spent | trained, "num_parameters": 1, **changes}), first
        )
    assert "which has another seed" in checked(bench, capsys)


def test_a_record_that_can_be_read_in_two_ways_is_named(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed_path(two[0].root, two[1])
    path.write_bytes(path.read_bytes().replace(b'"metrics":{', b'"metrics":{"P@1":0.99},"metrics":{', 1))
    assert "not a record: found 'metrics' twice" in checked(bench, capsys)


def test_predictions_that_are_small_have_to_be_there(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = two
    resampled = Packed(store.root).file(first.key, RESAMPLED)
    assert resampled
    add_packed(store.root, [(first, encode(first), {RESAMPLED: resampled})])
    assert "its predictions are not here" in checked(bench, capsys)


def test_counts_that_the_dataset_contradicts_are_named(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = two
    rewrite(store, first.model_copy(update={"test_texts_in_train": 7}))
    assert "it says that 7 test texts are in the training part, 0 are" in checked(bench, capsys)
    rewrite(store, first.model_copy(update={"spent": first.spent | {"queries": 10**6, "epochs": 0.5}}))
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
    rewrite(store, first.model_copy(update={"trial": trial, "key": trial.key}), first)
    assert message in checked(bench, capsys, "--base", str(base))


def test_predictions_of_no_labels_are_a_problem_of_one_submission(
    bench: Bench, two: tuple[Store, Record, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = two
    none = np.zeros((len(store.predictions(first)[0]), 0))
    predicted = Predictions(none.astype(np.int32), none.astype(np.float32))
    digest = bench.store.write_predictions(first.key, predicted, first.truth_hash)
    changed = first.model_copy(update={"digests": {**first.digests, PREDICTIONS: digest}})
    written = bench.store.directory(first.key)
    files = {name: (written / name).read_bytes() for name in (PREDICTIONS, RESAMPLED)}
    add_packed(store.root, [(changed, encode(changed), files)])
    assert "needs the best 1 labels per query, the predictions hold 0" in checked(bench, capsys)
