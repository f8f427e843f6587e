"""What is handed in is right, complete and made from committed code; and anyone can check it again."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, told
from fakes.bench import Bench
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save
from scipy import stats
from scipy.sparse import csr_matrix, save_npz

from xmcbench.data import load
from xmcbench.plugins.registry import registry
from xmcbench.trial.packed import compact_path
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record, Status, encode
from xmcbench.trial.store import MODEL, PREDICTIONS, RESAMPLED, Store
from xmcbench_plugins.board.acceptance import outdated, problems
from xmcbench_plugins.board.packing import add_packed, packed_path
from xmcbench_plugins.board.review import verify
from xmcbench_plugins.board.submission import LARGEST, shortened

COMMITTED = {"commit": "a" * 40, "dirty": False}
CLEAN = {
    "git": COMMITTED,
    "plugin": {"digest": "b" * 64, "git": COMMITTED},
    "command": ["/home/me/bin/xmcbench", "run", "/home/me/s.yaml"],
}


@pytest.fixture
def record(bench: Bench) -> Record:
    """A trial that ran from a clean tree."""
    (made,) = bench.run(bench.suite(["fake-ok"]), debug=True).values()
    return keep(bench, made, provenance={**made.provenance, **CLEAN})


def keep(bench: Bench, record: Record, **changes: Any) -> Record:
    changed = record.model_copy(update=changes)
    bench.store.write_record(changed)
    return changed


def submit(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    places = {"--to": "accepted", "--store": "results", "--data": "data"}
    given = {name: folder for name, folder in places.items() if name not in arguments}
    options = [word for name, folder in given.items() for word in (name, str(bench.root / folder))]
    code, said, errors = told(capsys, "submit", *arguments, *options)
    return code, said, re.sub(r"submit: \d+ s so far\n", "", errors)  # a busy machine has time for progress


def test_a_good_trial_is_written_and_passes_the_check(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, wrong = submit(bench, capsys, "ok")
    assert (code, wrong) == (0, "")
    assert f"{len(record.metrics)} metrics recomputed" in said
    accepted = Store(bench.root / "accepted")
    (found,) = accepted.records()
    assert found.provenance["command"] == ["xmcbench", "run", "s.yaml"], "no places on this machine"
    digests = {name: digest for name, digest in record.digests.items() if name != MODEL}  # which is not handed in
    assert found.model_copy(update={"provenance": record.provenance}) == shortened(
        record.model_copy(update={"digests": digests})
    )
    assert found.metrics == record.metrics
    np.testing.assert_allclose(list(found.intervals.values()), list(record.intervals.values()), rtol=1e-8)
    assert accepted.resampled(found, ["P@1"])["P@1"].tolist() == bench.store.resampled(record, ["P@1"])["P@1"].tolist()
    assert submit(bench, capsys, "--check") == (
        0,
        f"{accepted.root}: 1 trials, metrics of 1 recomputed, 0 problems\n",
        "",
    )


def test_several_trials_are_handed_in_at_once_without_those_that_are_wrong(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(bench.suite(["fake-rare"], seeds=[1, 2]), debug=True)
    for other in bench.store.records():
        if other.trial.label == "rare":
            keep(bench, other, provenance={**other.provenance, **(CLEAN if other.trial.seed == 2 else {})})
    code, said, wrong = submit(bench, capsys, "ok", "fake-20/rare")
    kept = {own.key for own in Store(bench.root / "accepted").records()}
    assert (code, len(kept), record.key in kept) == (1, 2, True)
    assert said.count("metrics recomputed") == 2
    assert wrong.startswith("not submitted: ")
    assert submit(bench, capsys, "--check")[0] == 0
    code, said, wrong = submit(bench, capsys, "ok")
    assert (code, "accepted before, in " in said, wrong) == (0, True, "")


def test_with_more_metrics_a_trial_takes_the_place_of_the_accepted_one(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(bench, capsys, "ok")[0] == 0
    assert call("rescore", "ok", "--metrics", "P@1,F1@2", *bench.places) == 0
    code, said, wrong = submit(bench, capsys, "ok")
    assert (code, "metrics recomputed" in said, wrong) == (0, True, "")
    (found,) = Store(bench.root / "accepted").records()
    assert found.metrics.keys() == record.metrics.keys() | {"F1@2"}
    assert submit(bench, capsys, "--check")[0] == 0


def test_withdrawn_trials_leave_no_trace_and_the_others_are_as_if_alone(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run(bench.suite(["fake-rare"], seeds=[0, 1]), debug=True)
    for other in bench.store.records():
        keep(bench, other, provenance={**other.provenance, **CLEAN})
    place = bench.root / "accepted"

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    assert submit(bench, capsys, "ok")[0] == 0
    alone = files()
    assert submit(bench, capsys, "rare")[0] == 0
    assert len(Store(place).records()) == 3
    first = next(own for own in Store(place).records() if (own.trial.label, own.trial.seed) == ("rare", 0))
    code, said, wrong = submit(bench, capsys, first.key, "--withdraw")
    assert (code, wrong) == (0, "")
    assert f"withdrawn: {first.key} fake-20/rare, seed 0, 5 steps; its seeds [1] stay" in said
    assert submit(bench, capsys, "--check")[0] == 0
    assert submit(bench, capsys, "rare", "--withdraw")[0] == 0
    assert files() == alone
    assert submit(bench, capsys, "rare", "--withdraw")[2].startswith(f"error: {place}: no trial is called 'rare'")
    assert submit(bench, capsys, record.key, "--withdraw")[0] == 0
    assert set(files()) <= {str(place / "locks" / "accepted")}
    assert bench.store.record(record.key), "the store of the user keeps it"


def test_submitting_again_after_a_kill_mends_the_compact_resamples(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(bench, capsys, "ok")[0] == 0
    path = compact_path(bench.root / "accepted", record.trial.dataset)
    whole = path.read_bytes()
    path.unlink()  # a submission that was killed between the trials and this file
    assert submit(bench, capsys, "--check")[0] == 1
    assert submit(bench, capsys, "ok")[0] == 0
    assert (path.read_bytes(), submit(bench, capsys, "--check")[0]) == (whole, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": Status.OVER_BUDGET}, "its status is over_budget, expected ok"),
        ({"metric_version": 0}, "its metrics are of definitions 0"),
        ({"key_version": 1}, "it was written by schema version 1, expected"),
        ({"metrics": {"P@1": 0.5, "nDCG@1": 0.4}, "intervals": {}}, "P@1 is 0.5 and nDCG@1 is 0.4"),
        ({"spent": {"steps": 7, "largest_step": {"steps": 1}}}, "it does not say what it spent of encoder_tokens"),
        ({"provenance": {}}, "its provenance does not say command"),
        ({"provenance": {"git": {"commit": "a" * 40, "dirty": True}}}, "expected a clean git tree"),
        ({"provenance": {"git": {}}}, "expected a clean git tree"),
        ({"provenance": {"git": {"commit": "abc", "dirty": False}}}, "expected 40 hexadecimal digits"),
        ({"ended": ""}, "it does not say when it began and ended"),
    ],
)
def test_what_a_record_lacks_is_said(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    keep(bench, record, **changes)
    code, _, wrong = submit(bench, capsys, "ok") if changes.get("status") is None else (1, "", "")
    changed = record.model_copy(update=changes)
    found = [*outdated(changed), *problems(changed)]
    assert any(message in problem for problem in found)
    assert code == 1
    assert not (bench.root / "accepted").exists()
    assert changes.get("status") or message in wrong


def test_figures_that_the_predictions_do_not_give_are_refused(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    better = {name: min(1.0, figure + 0.01) for name, figure in record.metrics.items()}
    keep(bench, record, metrics=better)
    code, _, wrong = submit(bench, capsys, "ok")
    assert code == 1
    assert f"P@1 is {better['P@1']}, its predictions give {record.metrics['P@1']}" in wrong
    keep(bench, record, intervals=dict.fromkeys(record.intervals, (0.0, 1.0)))
    assert "the interval of P@1 is (0.0, 1.0)" in submit(bench, capsys, "ok")[2]


def test_the_check_finds_what_was_changed_later(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, "ok")
    root = bench.root / "accepted"
    (shared,) = Store(root).records()
    path = packed_path(root, shared)
    before = path.read_bytes()

    path.write_bytes(before.replace(b'"status":"ok"', b'"status":"oom"'))
    assert f"{path}:1: its digest does not match its content: edited" in submit(bench, capsys, "--check")[2]
    path.write_bytes(before)

    predictions, truth = bench.store.predictions(record)
    turned = Predictions(predictions.indices[:, ::-1].copy(), predictions.scores)
    digest = bench.store.write_predictions(record.key, turned, truth)
    files = {
        PREDICTIONS: (bench.store.directory(record.key) / PREDICTIONS).read_bytes(),
        RESAMPLED: Store(root).result(shared, RESAMPLED),
    }
    add_packed(root, [(shared, encode(shared), files)])
    code, _, wrong = submit(bench, capsys, "--check")
    assert code == 1
    assert f"{path}:1: predictions.npz: damaged, or of another trial: found the digest" in wrong
    changed = shared.model_copy(update={"digests": {**shared.digests, PREDICTIONS: digest}})
    add_packed(root, [(changed, encode(changed), files)])
    code, _, wrong = submit(bench, capsys, "--check")
    assert code == 1
    assert wrong.startswith(f"{path}:1: the predictions of test query ")

    unknown = shared.model_copy(update={"digests": {}})
    add_packed(root, [(unknown, encode(unknown), {})])
    (root / "notes.txt").write_text("see my home page")
    code, said, wrong = submit(bench, capsys, "--check")
    assert code == 1
    assert "notes.txt is not expected here" in wrong
    assert "neither its predictions nor their SHA-256 are there" in wrong
    assert "1 trials, metrics of 0 recomputed" in said

    path.write_bytes(before + before + b"{}\n")
    wrong = submit(bench, capsys, "--check")[2]
    assert f"{path}:2: {record.key} is also in {path}:1" in wrong
    assert f"{path}:3: not a record: found no trial" in wrong


def test_data_that_follow_the_machine_are_not_recomputed_on_another(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit(bench, capsys, record.key)[0] == 0
    source = type(registry().thing("dataset", "fake-20"))
    monkeypatch.setattr(source, "fingerprint", lambda _self, _data_dir: "2")
    monkeypatch.setattr(sys.modules[source.__module__], "NUM_TRAIN", 31)
    code, _, wrong = submit(bench, capsys, "--check")
    assert code == 1
    assert "has the content hash" in wrong
    monkeypatch.setattr(source, "of_machine", True, raising=False)
    code, said, wrong = submit(bench, capsys, "--check")
    assert (code, wrong) == (0, "")
    assert "metrics not recomputed: fake-20 of this machine is other data" in said
    assert "metrics of 0 recomputed" in said


def test_a_trial_stands_in_the_file_of_its_suite_in_order(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {record.key}
    for other in bench.run(bench.suite(["fake-rare", "fake-ok"], seeds=[2, 1]), debug=True).values():
        keep(bench, other, provenance={**other.provenance, **CLEAN})
    for other in bench.store.records():
        if other.provenance.get("plugin") == CLEAN["plugin"]:
            assert submit(bench, capsys, other.key)[0] == 0
            keys.add(other.key)
    root = bench.root / "accepted"
    (path,) = root.glob("*/*.jsonl")
    assert path == root / "fake-20" / "test.jsonl"
    lines = path.read_text().splitlines()
    told = [(line["method"], line["label"], line["seed"]) for line in map(json.loads, lines)]
    assert told == sorted(told)
    assert {json.loads(line)["key"] for line in lines} == keys
    assert submit(bench, capsys, "--check")[0] == 0
    compact = root / "fake-20.safetensors"
    content = compact.read_bytes()
    compact.write_bytes(save({name: 2 * values for name, values in load_arrays(content).items()}))
    assert f"{compact}: not of the resamples beside it" in submit(bench, capsys, "--check")[2]
    compact.write_bytes(content)
    path.write_text("\n".join(reversed(lines)) + "\n")
    assert "its lines are not sorted" in submit(bench, capsys, "--check")[2]
    path.write_text("\n".join(lines) + "\n")
    path.rename(path.with_name("another.jsonl"))
    path.with_suffix(".safetensors").rename(path.with_name("another.safetensors"))
    assert f"it belongs into {path}" in submit(bench, capsys, "--check")[2]


def test_predictions_that_are_too_large_are_named_by_their_hash(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmcbench_plugins.board.submission.LARGEST", 100)
    submit(bench, capsys, "ok")
    accepted = Store(bench.root / "accepted")
    assert accepted.files(record.key) == ["resampled.safetensors"]
    assert accepted.digest(accepted.records()[0], PREDICTIONS) == record.digests[PREDICTIONS]
    monkeypatch.setattr("xmcbench_plugins.board.submission.LARGEST", LARGEST)
    assert "its predictions are not here" in submit(bench, capsys, "--check")[2], "they are small"
    monkeypatch.setattr("xmcbench_plugins.board.submission.PAIR_BYTES", LARGEST)
    code, said, _ = submit(bench, capsys, "--check")
    assert code == 0
    assert "metrics of 0 recomputed, 0 problems" in said


def fresh(bench: Bench, seeds: Sequence[int], spread: float = 0.0) -> Path:
    """A store with runs of the trial with these seeds; those of odd seeds have metrics higher by the share `spread`."""
    place = bench.root / "fresh"
    shutil.rmtree(place, ignore_errors=True)
    store = Store(place)
    suite = bench.suite(["fake-ok"], seeds=list(seeds))
    for made in bench.runner(suite, debug=True).run(bench.runner(suite, debug=True).plan(), bench.heard):
        drawn = bench.store.resampled(made, list(made.metrics))
        factor = 1 + spread * (made.trial.seed % 2)
        metrics = {name: min(1.0, value * factor) for name, value in made.metrics.items()}
        values = {name: own * factor for name, own in drawn.items()}
        digests = {**made.digests, RESAMPLED: store.write_resampled(made.key, values, made.truth_hash)}
        store.write_record(made.model_copy(update={"metrics": metrics, "intervals": {}, "digests": digests}))
    return place


def states(bench: Bench, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The states of the accepted trials as the review has them."""
    review = bench.root / "review.md"
    submit(bench, capsys, "--check", "--comment", str(review), *arguments)
    table = review.read_text().split("\n\n")[1]
    return [line.split("|")[3].strip() for line in table.splitlines()[2:]]


def test_fresh_seeds_that_are_equivalent_verify_a_result(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, record.key)
    listed = ("--verified", str(bench.root / "verified.yaml"))
    assert states(bench, capsys, *listed) == ["recomputed"]
    place = fresh(bench, [1, 2, 3])
    code, said, wrong = submit(bench, capsys, record.key, "--verify", "--store", str(place), *listed)
    assert (code, wrong) == (0, "")
    assert f"{record.key} verified: within 0.00 points (widest: " in said
    assert states(bench, capsys, *listed) == ["verified"]

    (shared,) = Store(bench.root / "accepted").records()
    changed = shared.model_copy(update={"num_parameters": 7})
    files = {name: Store(bench.root / "accepted").result(shared, name) for name in shared.digests}
    add_packed(bench.root / "accepted", [(changed, encode(changed), files)])
    assert states(bench, capsys, *listed) == ["recomputed"], "the record is not the one that was verified"


def test_a_trial_that_is_trained_again_with_its_seed_agrees_or_is_named(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, record.key)
    listed = ("--verified", str(bench.root / "verified.yaml"))
    code, said, wrong = submit(bench, capsys, record.key, "--retrain", "--store", str(bench.root / "mine"), *listed)
    assert (code, wrong) == (0, "")
    assert re.search(rf"{record.key} trained again: .* differs by 0.00 points, steps 1.000 times", said)
    assert states(bench, capsys, *listed) == ["retrained"]

    accepted = Store(bench.root / "accepted")
    lies = {"steps": 3}, {}
    metrics = {}, {name: value / 2 for name, value in record.metrics.items()}
    for spent, better in zip(lies, metrics, strict=True):
        lied = {"spent": record.spent | spent, "metrics": record.metrics | better, "intervals": {}}
        accepted.write_record(record.model_copy(update=lied))
        assert states(bench, capsys, *listed) != ["retrained"], "the record is not the one that was trained again"
        code, _, wrong = submit(bench, capsys, record.key, "--retrain", "--store", str(bench.root / "mine"), *listed)
        assert (code, wrong.endswith("not the result of its settings\n")) == (1, True)
        assert states(bench, capsys, *listed) != ["retrained"]


def test_what_is_not_shown_to_be_equivalent_says_how_wide_it_was(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, record.key)
    listed = ("--verified", str(bench.root / "verified.yaml"))
    place = fresh(bench, [1, 2, 3], spread=-0.1)
    code, said, _ = submit(bench, capsys, record.key, "--verify", "--store", str(place), *listed)
    assert code == 0
    assert re.search(rf"{record.key} not verified within 1 point: within \d+\.\d\d points \(widest: ", said)
    assert states(bench, capsys, *listed) == ["recomputed"]
    assert re.search(r"\| within \d+\.\d\d points", (bench.root / "review.md").read_text())
    place = fresh(bench, [0, 1, 2])
    code, _, wrong = submit(bench, capsys, record.key, "--verify", "--store", str(place), *listed)
    assert (code, "found 2 runs of this trial, expected 3 or more" in wrong) == (2, True), "seed 0 is the accepted one"


def test_the_margin_is_that_of_two_one_sided_tests(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, record.key)
    accepted, place = Store(bench.root / "accepted"), Store(fresh(bench, [1, 2, 3], spread=-0.01))
    found = verify(accepted, record, place)
    runs = sorted(place.records(), key=lambda run: run.trial.seed)
    values = np.array([run.metrics["P@1"] for run in runs])
    error = np.sqrt(values.var(ddof=1) * 2 / 2 * (1 + 1 / 3))  # pooled: one accepted seed has no variance of its own
    queries = accepted.resampled(record, ["P@1"])["P@1"].astype(float) - np.mean(
        [place.resampled(run, ["P@1"])["P@1"] for run in runs], axis=0, dtype=float
    )
    half = np.hypot(stats.norm.ppf(0.95) * queries.std(ddof=1), stats.t.ppf(0.95, 2) * error)  # fewer than five seeds
    assert found.margins["P@1"] == pytest.approx(100 * (abs(record.metrics["P@1"] - values.mean()) + half), abs=1e-3)


def test_a_submission_cannot_claim_to_be_verified(
    bench: Bench, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(bench, capsys, record.key)
    (bench.root / "accepted" / "verified.yaml").write_text("verified: []\n")
    code, _, wrong = submit(bench, capsys, "--check")
    assert code == 1
    assert "verified.yaml is not expected here" in wrong
    assert states(bench, capsys) == ["recomputed"]


def test_predictions_of_another_program_can_be_handed_in(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = load("fake-20", bench.root / "data")
    predictions = bench.root / "elsewhere.npz"
    save_npz(predictions, csr_matrix(dataset.test.targets.astype(np.float32)))
    assert score_into_store(bench, predictions) == 0
    capsys.readouterr()
    (made,) = bench.store.records()
    keep(bench, made, provenance={**made.provenance, **CLEAN})
    code, said, wrong = submit(bench, capsys, made.key)
    assert (code, wrong) == (0, "")
    assert f"{len(made.metrics)} metrics recomputed" in said
    assert states(bench, capsys) == ["imported"]


def score_into_store(bench: Bench, predictions: Path) -> int:
    """The exit code of `xmcbench score`, which keeps the predictions in the store."""
    return call("score", predictions, "--dataset", "fake-20", *bench.places)


def test_either_a_run_or_a_check(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["ok", "--check"]):
        code, _, wrong = submit(bench, capsys, *arguments)
        assert (code, wrong) == (2, "error: submit: expected a RUN to hand in, or --check and no RUN\n")


def test_a_check_of_nothing_is_an_error(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, wrong = submit(bench, capsys, "--check")
    place = bench.root / "accepted"
    assert (code, said) == (2, "")
    assert wrong == f"error: {place}: no such folder, expected the accepted results (--to DIR)\n"


@pytest.mark.long
def test_what_the_project_holds_passes_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    """As CI has it, where datasets that are made can be made."""
    folder = Path(__file__).parents[3] / "leaderboard" / "measured"
    assert call("submit", "--check", "--to", folder, "--base", folder) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", ["submit a --store {place}", "submit --check --to {place}"])
@pytest.mark.parametrize("file", ["trials", ""])
def test_a_store_whose_folder_is_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, file: str
) -> None:
    place = tmp_path / "results"
    if file:
        place.mkdir()
    (place / file).write_text("no folder")
    code, _, errors = told(capsys, *command.format(place=place).split())
    assert code == 2
    (line,) = (line for line in errors.splitlines() if not line.endswith("so far"))
    assert line.startswith(f"error: {place}")
