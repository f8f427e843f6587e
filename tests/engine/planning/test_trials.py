"""Plans of whole trials: memory, hours, messages, and what cannot fit."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from xmcbench.engine import device
from xmcbench.engine.planning import memory as memory_module
from xmcbench.engine.planning.gpu_facts import SIZE, gpu_facts
from xmcbench.engine.planning.trials import (
    MACHINES,
    MARGIN,
    Machine,
    Planner,
    TrialPlan,
    fits,
    machine_called,
    measured_peak,
    plan_here,
    too_large,
    too_long,
    too_much,
)
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget
from xmcbench.trial.trial import Selection, Trial

DEVICE = Machine("toy", bf16=1e12, float32=1e11, memory=1e9, source="made up", kind="cpu")
PROCESS = 5e8


@pytest.fixture
def planned(small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrialPlan]:
    """Plans a trial on 200 labels; the process is taken to hold half a gigabyte."""
    monkeypatch.setattr(memory_module, "process_bytes", lambda _: PROCESS)

    def plan(
        method: str = "dexml",
        budget: dict[str, Any] | None = None,
        dataset: str = "catalog-200",
        machine: Machine = DEVICE,
        workers: int = 1,
        lengths: Sequence[int | None] = (12, 6),
        selection: Selection | None = None,
        **settings: Any,
    ) -> TrialPlan:
        found = registry().method(method)
        encoder = (
            {"encoder": {"name": small_encoder}, "batch_size": 16} if hasattr(found.thing, "encodes_labels") else {}
        )
        config = found.thing.Config.model_validate(encoder | settings)
        trial = Trial(
            label="a", method=method, distribution="xmcbench", version="0", config=config.model_dump(mode="json"),
            dataset=dataset, dataset_hash="", seed=0, budget=Budget.model_validate(budget or {"steps": 10}),
            selection=selection,
        )  # fmt: skip
        return Planner(tmp_path / "data", tmp_path / "cache", machine, *lengths).plan(trial, workers)

    return plan


def test_hours_are_operations_over_what_the_devices_reach(planned: Callable[..., TrialPlan]) -> None:
    one = planned(negatives="in-batch")
    assert one.seconds == pytest.approx(one.ledger.flops / (1e11 * 0.3))
    assert one.device_hours == pytest.approx(one.seconds / 3600)
    half = planned(negatives="in-batch", machine=replace(DEVICE, utilisation=0.15))
    assert half.seconds == pytest.approx(2 * one.seconds)
    bf16 = planned(negatives="in-batch", precision="bf16")
    assert bf16.seconds == pytest.approx(one.seconds / 10)
    assert planned(negatives="in-batch", activation_gib=0).seconds == pytest.approx(4 / 3 * one.seconds, rel=0.01)


def test_several_workers_share_and_talk(planned: Callable[..., TrialPlan]) -> None:
    one, four = (planned("ova", machine=replace(DEVICE, kind="cuda"), workers=workers) for workers in (1, 4))
    assert (one.ledger.flops, one.ledger.steps) == (four.ledger.flops, four.ledger.steps)
    assert four.seconds == pytest.approx(one.seconds / 4)
    assert four.device_hours == pytest.approx(one.device_hours)
    assert one.network == 0
    parameters = one.memory.weights / 4
    # Gradients are summed: each worker sends twice three quarters of them. And a query has 32 numbers of 4 bytes.
    assert four.network == pytest.approx(1.5 * 4 * parameters + 3 * 0.75 * 16 * 32 * 4)
    assert four.memory.tables == pytest.approx(one.memory.tables / 4)
    assert four.memory.weights == one.memory.weights


def test_memory_is_the_sum_of_its_parts(planned: Callable[..., TrialPlan]) -> None:
    held = planned("ova").memory
    assert held.process == PROCESS
    rows, width = 200, 32
    # A weight and two moments of each number of the table; of a row a count and its own number.
    assert held.tables == rows * width * 3 * 4 + rows * (4 + 8)
    assert held.embeddings >= rows * width * 4  # a gradient of each number
    assert held.optimizer == 3 * held.weights
    parts = held.parts()
    always = sum(parts[name] for name in ("process", "weights", "optimizer", "tables", "data"))
    step = held.embeddings + held.activations + held.scores + held.backward
    # So few bytes of a step stay with the process when they are freed.
    assert held.total == pytest.approx(always + step + max(held.evaluation, held.refresh, held.search))
    on_gpu = planned("ova", machine=replace(DEVICE, kind="cuda")).memory
    assert on_gpu.process == 0
    at_once = max(on_gpu.embeddings + on_gpu.scores, on_gpu.backward)
    always = on_gpu.before_training + on_gpu.optimizer
    assert on_gpu.total == pytest.approx(always + on_gpu.activations + at_once)


def test_evaluations_take_an_index_and_scores(planned: Callable[..., TrialPlan]) -> None:
    selection = Selection(queries=50, metric="P@1", evaluations=2)
    without, evaluated = planned("ova").memory, planned("ova", selection=selection).memory
    assert without.evaluation == 0
    labels, width = 200, 32
    assert evaluated.evaluation >= 2 * labels * width * 4  # the index before is there too


def test_a_larger_batch_keeps_more_until_nothing_is_kept(planned: Callable[..., TrialPlan]) -> None:
    small, large = (planned(negatives="in-batch", batch_size=size).memory.activations for size in (16, 64))
    assert large > 2 * small
    little = planned(negatives="in-batch", batch_size=64, activation_gib=0, micro_batch_tokens=64).memory.activations
    assert little < small


def test_less_is_kept_and_more_recomputed_where_the_budget_has_little_memory(planned: Callable[..., TrialPlan]) -> None:
    settings: dict[str, Any] = {"negatives": "in-batch", "batch_size": 64, "micro_batch_tokens": 64}
    enough = planned(**settings)
    peak = enough.memory.before_training + int(enough.memory.activations)  # half of that is for activations
    scarce = planned(**settings, budget={"steps": 10, "peak_bytes": peak})
    none = planned(**settings, activation_gib=0)
    assert none.memory.activations < scarce.memory.activations < enough.memory.activations
    assert enough.seconds < scarce.seconds < none.seconds
    assert enough.ledger.flops == scarce.ledger.flops  # as the ledger counts them


def test_a_refused_pass_is_told(planned: Callable[..., TrialPlan]) -> None:
    settings: dict[str, Any] = {"negatives": "hard", "shortlist": 8, "refresh_start": 1, "refresh_every": 1}
    assert planned(**settings, budget={"epochs": 2}).notes == ()
    tokens = planned(**settings, budget={"epochs": 1}).ledger.encoder_tokens + 100
    (told,) = planned(**settings, budget={"encoder_tokens": tokens}).notes
    assert told == "a: mining or clustering does not fit into the budget: training ends after 1 epoch"


def test_what_does_not_fit_is_told_and_what_might_is_run(planned: Callable[..., TrialPlan]) -> None:
    def plan(peak: float) -> TrialPlan:
        return planned(negatives="in-batch", activation_gib=0, budget={"steps": 3, "peak_bytes": peak})

    needed = plan(1e12).memory.total
    assert too_large(plan(1e12)) is None
    assert too_large(plan(needed / (1 + MARGIN / 2))) is None  # only running it can tell
    told = too_large(plan(needed / (1 + 2 * MARGIN)))
    assert told is not None
    assert f"predicted to take {needed / 1e9:.2f} GB" in told
    assert [fits(plan(needed * share), DEVICE) for share in (0.9, 1.1, 2)] == ["no", "close", "yes"]
    assert fits(plan(1e12), replace(DEVICE, memory=needed / 2)) == "no"


def test_a_dataset_that_is_not_here_is_planned_from_its_card(planned: Callable[..., TrialPlan]) -> None:
    made = planned(negatives="in-batch", dataset="eurlex-4k", budget={"epochs": 1})
    assert not made.measured
    assert made.ledger.steps == -(-15_449 // 16)
    assert "eurlex-4k is not here: queries and labels of 12 and 6 tokens are assumed" in made.notes
    # 16 queries draw a label each; with so many labels few of them are the same.
    assert made.ledger.encoder_tokens == pytest.approx(made.ledger.steps * (16 * 12 + 16 * 6), rel=0.01)


def test_lengths_follow_from_the_words_on_the_card(planned: Callable[..., TrialPlan]) -> None:
    def lengths(dataset: str, **settings: Any) -> str:
        made = planned(dataset=dataset, negatives="in-batch", budget={"steps": 1}, lengths=(), **settings)
        return made.notes[0].removeprefix(f"{dataset} is not here: queries and labels of ")

    # 2 + 1.4 * 6.92 words of a product's title; 2 + 1.4 * 3.26 of a category, and a long article
    assert lengths("lf-amazontitles-131k") == "12 and 12 tokens are assumed"
    assert lengths("lf-wikipedia-500k") == "128 and 7 tokens are assumed"
    assert lengths("lf-wikipedia-500k", max_query_length=64, max_label_length=5) == "64 and 5 tokens are assumed"


def test_a_second_stage_is_planned_up_to_its_encoder(planned: Callable[..., TrialPlan], small_encoder: str) -> None:
    first = {"encoder": {"name": small_encoder}, "batch_size": 16}
    whole = planned("classifier", budget={"steps": 10}, first={"method": "dexml", **first}, share=0.6)
    assert whole.ledger.flops == planned("dexml", budget={"steps": 6}).ledger.flops
    assert whole.notes == ("a: the training of its encoder (dexml) is planned, the next stage is not",)


def test_what_a_machine_cannot_hold_is_told_with_the_labels_that_it_could(planned: Callable[..., TrialPlan]) -> None:
    plan = planned("ova", workers=2)
    needed = plan.memory.total
    room = replace(DEVICE, memory=2 * needed)
    assert too_much(plan, room) is None
    small = replace(DEVICE, memory=1.9995 * needed)  # two workers share a CPU's memory
    told = too_much(plan, small)
    assert told is not None
    assert [fits(plan, machine) for machine in (small, room, replace(room, memory=3 * needed))] == [
        "no",
        "close",
        "yes",
    ]
    assert re.fullmatch(
        r"needs about \S+ GB of memory, and toy has \S+ GB, enough for about 1?\d\d of the 200 labels", told
    )
    assert "about 0 of the 200 labels" in str(too_much(plan, replace(DEVICE, memory=PROCESS)))
    assert too_much(plan, replace(small, kind="cuda")) is None  # each has its own
    assert too_much(plan, room, free_disk=plan.disk) is None
    assert too_much(plan, room, free_disk=plan.disk / 2) == (
        f"needs about {plan.disk / 1e9:.3g} GB of disk, and the store has {plan.disk / 2e9:.3g} GB"
    )
    rows = 200 * 32 * 4
    assert plan.disk > rows + 3 * 3 * rows  # the model's, and those of three checkpoints with two moments


def test_an_approximate_search_holds_the_vectors_twice(planned: Callable[..., TrialPlan]) -> None:
    exact, clusters, graph = (planned(search=search).memory.search for search in ("exact", "faiss-ivf", "faiss-hnsw"))
    assert clusters - exact == 200 * (32 * 4 + 8)
    assert graph - exact == 200 * (32 * 4 + 64 * 4)


def test_the_memory_of_a_container_and_of_a_process_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(device.resource, "getrlimit", lambda _: none)
    monkeypatch.setattr(device, "CGROUP_LIMITS", (tmp_path / "memory.max", tmp_path / "absent"))
    (tmp_path / "memory.max").write_text("max\n")
    assert device.usable_memory() == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("3000000\n")
    assert device.usable_memory() == 3_000_000
    monkeypatch.setattr(device.resource, "getrlimit", lambda _: (2_000_000, none[1]))
    assert device.usable_memory() == 2_000_000


def test_a_time_limit_below_the_prediction_is_told(planned: Callable[..., TrialPlan]) -> None:
    plan = planned(workers=2)
    assert too_long(plan, plan.seconds) is None
    assert too_long(plan, plan.seconds / 2) == (
        f"catalog-200/a is predicted to take {plan.seconds / 3600:.4g} hours on 2 x {DEVICE.name}, "
        f"idle, the suite's timeout ends it after {plan.seconds / 7200:.4g}"
    )


def test_what_trains_no_encoder_is_not_planned(planned: Callable[..., TrialPlan]) -> None:
    with pytest.raises(XMCBenchError, match="trains no encoder of its own"):
        planned("tfidf-nn")


def test_a_run_says_where_a_plan_failed(
    planned: Callable[..., TrialPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two devices")

    trial = planned().trial
    monkeypatch.setattr("xmcbench.engine.planning.trials.observe", broken)
    assert plan_here(trial, tmp_path / "data", tmp_path / "cache", 1) is None
    assert "a: memory and time are not checked before it runs: it cannot be planned: RuntimeError: two" in caplog.text


def test_devices_are_found_by_name() -> None:
    assert machine_called("h100") is MACHINES["h100"]
    assert MACHINES["h100"].seconds(1e15, "bf16", 1) < MACHINES["h100"].seconds(1e15, "float32", 1)
    with pytest.raises(UnknownNameError, match=r"--accelerator: unknown accelerator 'h10' \(did you mean"):
        machine_called("h10")


def test_the_peak_of_this_machine_is_of_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 4.0, 4.0, 6.0, *(10.0 * n for n in range(1, 13))])  # products of 4, 2 and 10 seconds
    monkeypatch.setattr("time.thread_time", lambda: next(seconds))
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("the clock of the wall also counts other work"))
    threads = torch.get_num_threads()
    assert measured_peak.__wrapped__("float32", size=8) == threads * 2 * 8**3 / 2.0
    assert torch.get_num_threads() == threads


def test_the_peak_of_a_gpu_is_measured_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA context here would take memory from the trials, and stop them from being forked."""
    facts = gpu_facts("cpu", 64)  # the same code, on a device that every machine has
    assert facts["memory"] == 0
    assert min(facts["float32"], facts["bf16"]) > 0
    asked = []

    def on_a_gpu(kind: str, size: int = 0) -> dict[str, float]:
        asked.append((kind, size))
        return {"memory": 8e10, "float32": 5e13, "bf16": 8e14}

    monkeypatch.setattr("xmcbench.engine.planning.trials.gpu_facts", on_a_gpu)
    monkeypatch.setattr("xmcbench.engine.planning.trials.default_device", lambda: torch.device("cuda"))
    here = machine_called("here")
    assert (here.memory, here.kind) == (8e10, "cuda")
    assert measured_peak.__wrapped__("bf16", "cuda") == 8e14
    assert asked[-1] == ("cuda", SIZE)
    assert not torch.cuda.is_initialized()


def test_adapters_are_what_is_trained(planned: Callable[..., TrialPlan], small_encoder: str) -> None:
    pytest.importorskip("peft")
    whole, adapted = planned(), planned(encoder={"name": small_encoder, "lora": {"rank": 1}})
    # Of each of two layers: four matrices of 32 x 32 and two of 32 x 64.
    trained = 2 * (4 * (32 + 32) + 2 * (32 + 64))
    (note,) = set(adapted.notes) - set(whole.notes)
    assert note.startswith(f"a: {trained} parameters of the encoder are trained, 0.000")
    assert adapted.memory.optimizer < 0.05 * whole.memory.optimizer
    assert adapted.ledger.flops > whole.ledger.flops
