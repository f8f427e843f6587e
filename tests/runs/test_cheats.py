"""Honest accidents in a method's accounts and its model: what the record of each trial says. `docs/security.md` lists
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.bench import Bench

from xmcbench.trial.method import check_plugin
from xmcbench.trial.record import Record

from fakes import cheats, install_fakes  # isort: skip
from fakes.xmcbench_fakes import Ok  # isort: skip

pytestmark = pytest.mark.long  # a trial of each method

# By method: the start of the reason why its trial is invalid.
ENDINGS = {
    "nan-ledger": "spent.encoder_tokens: found nan, ",
    "text-ledger": "spent.steps: found '5', ",
    "negative-seconds": "spent.stage_seconds.train: found -345",
    "cleared-seconds": "fit took ",
    "bad-curve": "curve.0.fraction: found inf, ",
    "own-pass": "fit encoded ",
    "pass-in-index": "fit encoded 120 texts in the stage index, which is for 20 labels",
    "pass-uncharged": "fit encoded ",
    "trains-in-index": "fit trained in the stage index, ",
    "trains-uncharged": "fit trained in the stage uncharged, ",
    "trains-in-predict": "predict trained: ",
    "trains-in-save": "save trained: ",
    "trains-in-load": "the saved model cannot be used: BrokenContractError: load trained: ",
    "learns-into-model": "predict wrote into the saved model: ",
    "fits-on-test": "predictions differ from those of the saved model, loaded again: ",
    "stores-path": "the saved model cannot be used: BrokenContractError: the method opened ",
    "stores-model-path": "the saved model cannot be used: BrokenContractError: the method opened ",
    "home-cache": "the method wrote ",
    "thread-trains": "fit trained in the stage of another thread, ",
    "negative-steps": "spent.steps: found -3, ",
    "negative-parameters": "num_parameters is -5, ",
    "lowers-tokens": "fit encoded 960 tokens and charged 60: ",
    "saves-link": "save made the link 'popularity.json', ",
    "huge-parameters": "num_parameters is 1000",
    "regenerates": "the method looked up the dataset 'fake-20' in fit: ",
    "quietly-regenerates": "the method looked up the dataset 'fake-20' in fit: ",
}
OTHERS = {
    "late-ledger": ("ok", ""),
    "changes-budget": ("over_budget", ""),
    "forges-record": ("error", "the worker ended with code 0 and left no record"),
    "error-without-text": ("error", "an exception without text: ValueError in its __str__"),
    "endless-error": ("error", "x" * 10_000),
    "own-stage": ("error", "unknown stage 'tokenise'"),
    "largest-step": ("over_budget", ""),
    "shared-cache": ("ok", ""),
    "reads-environment": ("ok", ""),
    "patched-clock": ("ok", ""),
    "child-works": ("ok", ""),
    "own-loop": ("ok", ""),
    "trains-solver": ("ok", ""),
    "fake-ok": ("ok", ""),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("cheats")
    with pytest.MonkeyPatch.context() as monkeypatch:
        (root / "site").mkdir()
        (root / "home").mkdir()
        (root / "temporary").mkdir()
        install_fakes(root / "site", monkeypatch)
        monkeypatch.setenv("XMCBENCH_CACHE", str(root / "cache"))
        monkeypatch.setenv("HOME", str(root / "home"))
        monkeypatch.setenv("TMPDIR", str(root / "temporary"))  # what lies in it, a trial may write
        with cheats(root / "site"):
            yield Bench(root)


@pytest.fixture(scope="module")
def endings(bench: Bench) -> dict[str, Record]:
    names = [*ENDINGS, *OTHERS]
    return bench.run(bench.suite({name: {"method": name} for name in names}), cache=bench.root / "cache")


@pytest.mark.parametrize("method", ENDINGS)
def test_an_accident_makes_a_trial_invalid(endings: dict[str, Record], method: str) -> None:
    record = endings[method]
    assert record.failure is not None
    assert (record.status, "\n" in record.failure.message) == ("invalid", False), record.failure
    assert record.failure.message.startswith(ENDINGS[method]), record.failure.message


@pytest.mark.parametrize("method", OTHERS)
def test_what_other_trials_say(endings: dict[str, Record], method: str) -> None:
    record, (status, reason) = endings[method], OTHERS[method]
    message = record.failure.message if record.failure else ""
    assert (record.status, message.startswith(reason)) == (status, True), message


def test_the_record_says_how_many_test_texts_are_in_the_training_part(endings: dict[str, Record]) -> None:
    assert endings["fake-ok"].test_texts_in_train == 0


def test_the_record_says_what_the_harness_measured(endings: dict[str, Record]) -> None:
    spent = endings["fake-ok"].spent
    assert spent["fit_seconds"] > 0
    assert spent["fit_cpu_seconds"] >= 0
    assert spent["predict_cpu_seconds"] >= 0
    assert endings["child-works"].spent["fit_cpu_seconds"] > 0.1
    assert endings["own-loop"].spent["stage_seconds"]["uncharged"] > 0
    assert endings["patched-clock"].spent["fit_seconds"] >= 0.5
    assert endings["patched-clock"].spent["stage_seconds"]["train"] >= 0.5
    assert endings["patched-clock"].spent["stage_cpu_seconds"]["train"] >= 0.3
    assert endings["child-works"].spent["stage_cpu_seconds"]["train"] > 0.1
    for name in ("fake-ok", "child-works", "own-loop", "patched-clock"):
        assert endings[name].clock == "processor", name


def test_the_operations_of_a_solver_that_nobody_charges_are_unknown(endings: dict[str, Record]) -> None:
    assert "flops" in endings["fake-ok"].spent
    assert "flops" not in endings["trains-solver"].spent


def test_a_record_has_the_costs_of_fit(endings: dict[str, Record]) -> None:
    record = endings["late-ledger"]
    assert (record.spent["steps"], record.curve) == (5, [])


def test_held_out_queries_are_not_for_training(bench: Bench) -> None:
    suite = bench.suite({"it": {"method": "climbs-held-out"}}, selection={"queries": 5, "evaluations": 1})
    record = bench.run(suite, cache=bench.root / "cache")["it"]
    assert record.failure is not None
    assert record.failure.message.startswith("fit scored held-out queries 60 times, the suite asks for 1: ")


def test_a_method_names_no_module_of_its_own_as_a_late_import() -> None:
    class Late(Ok):
        late_imports = ("xmcbench_fakes.training",)

    Late.__module__ = "xmcbench_fakes"
    with pytest.raises(TypeError, match="its own module: import it in fit"):
        check_plugin(Late)


def test_work_beside_a_budget_of_seconds_is_refused(bench: Bench) -> None:
    suite = bench.suite({"it": {"method": "slow-index"}}, budget={"device_seconds": 1})
    record = bench.run(suite, cache=bench.root / "cache")["it"]
    assert record.status == "invalid"
    assert record.failure is not None
    assert "beside a budget of 1: only indexing is free" in record.failure.message


def test_the_zero_shot_track_has_no_training_annotations_on_disk(bench: Bench) -> None:
    suite = bench.suite({"it": {"method": "reads-annotations"}}, track="zero-shot")
    record = bench.run(suite, cache=bench.root / "cache")["it"]
    assert record.status == "invalid", record.failure
    assert record.failure is not None
    assert Path(record.failure.message.split()[3]).name == "train_targets.indices.npy"


def test_a_method_that_changes_json_harms_its_own_trial_alone(bench: Bench) -> None:
    suite = bench.suite({"broken": {"method": "patches-json"}, "next": {"method": "own-loop"}})
    records = bench.run(suite, cache=bench.root / "cache", retry=True)
    assert [records[name].status for name in ("broken", "next")] == ["invalid", "ok"]
