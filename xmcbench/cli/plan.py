"""`xmcbench plan`: predict the cost of a suite's trials before any of them runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.options import DataDir, DatasetNames, EncoderName, Only, Sets, SuitePath, TableFormat

if TYPE_CHECKING:
    from xmcbench.engine.planning.trials import Machine, TrialPlan
    from xmcbench.reporting import TextTable
    from xmcbench.trial.trial import Trial


def plan(
    suite: SuitePath,
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="A device, as h100; here: this machine, measured.")
    ] = "a100-80gb",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Devices per trial.")] = 1,
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1, metavar="SHARE", help="Assumed fraction of peak throughput.")
    ] = 0.3,
    query_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per query of a dataset that is not on disk.")
    ] = None,
    label_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per label of a dataset that is not on disk.")
    ] = None,
    only: Only = "*",
    sets: Sets = None,
    datasets: DatasetNames = None,
    encoder: EncoderName = None,
    format: TableFormat = "table",
    data: DataDir = Path("data"),
) -> None:
    """Predict operations, hours, memory and network traffic of each trial of a suite, without running any.

    Exit code: 0 every trial fits into memory; 1 a trial does not; 2 invalid input.
    """
    from xmcbench.data.prepared import default_cache_dir
    from xmcbench.engine.planning.accelerators import HERE
    from xmcbench.engine.planning.accelerators import accelerator as find
    from xmcbench.engine.planning.memory import device_kind
    from xmcbench.engine.planning.trials import Machine, Planner
    from xmcbench.engine.planning.workload import Lengths
    from xmcbench.errors import XMCBenchError
    from xmcbench.reporting import render_tables
    from xmcbench.run.plan import select
    from xmcbench.suite.suite import load_suite

    machine = Machine(find(accelerator), workers, utilisation, device_kind() if accelerator == HERE else "cuda")
    asked = load_suite(suite, data, sets or (), datasets or (), encoder, on_disk=False)
    planner = Planner(data, default_cache_dir(), Lengths(query_tokens, label_tokens), machine)
    trials = select(asked.trials(dict.fromkeys(asked.datasets, "")), only)
    seeds = Counter((trial.dataset, trial.label) for trial in trials)
    plans: list[TrialPlan] = []
    left_out: list[str] = []
    for trial in {(trial.dataset, trial.label): trial for trial in reversed(trials)}.values():
        try:
            plans.append(planner.plan(trial))
        except XMCBenchError as problem:
            left_out.append(f"{trial.dataset}/{trial.label}: {problem}")
    plans.reverse()
    grids = [_costs(plans, seeds, machine), _memory(plans)] if plans else []
    typer.echo(render_tables(grids, format))
    for line in reversed(left_out):
        typer.echo(f"not planned: {line}", err=True)
    raise typer.Exit(0 if all(_fits(plan, machine) != "no" for plan in plans) else 1)


def _fits(plan: TrialPlan, machine: Machine) -> str:
    from xmcbench.engine.planning.trials import fits

    return fits(plan, machine.accelerator)


def _costs(plans: Sequence[TrialPlan], seeds: Counter[tuple[str, str]], machine: Machine) -> TextTable:
    from xmcbench.engine.planning.trials import MARGIN
    from xmcbench.reporting import TextTable
    from xmcbench.reporting.numbers import format_value

    rows = [
        (
            _name(plan.trial, plans),
            *(
                format_value(value, "count")
                for value in (plan.steps, round(plan.pool), plan.encoder_tokens, plan.flops)
            ),
            format_value(plan.device_hours, "hours"),
            format_value(plan.memory.total, "bytes"),
            format_value(plan.network, "bytes") if plan.workers > 1 else "-",
            _fits(plan, machine),
        )
        for plan in plans
    ]
    device = machine.accelerator
    total = sum(plan.device_hours * seeds[plan.trial.dataset, plan.trial.label] for plan in plans)
    notes = [
        f"{machine.workers} x {device.name} ({device.source}), {machine.utilisation:.0%} of its peak assumed; "
        f"all trials with their seeds: {format_value(total, 'hours')} device hours",
        f"fits: close where memory is within {MARGIN:.0%} of the device's; memory and sent are per worker",
        *dict.fromkeys(note for plan in plans for note in plan.notes),
    ]
    headings = ("trial", "steps", "pool", "tokens", "flops", "device hours", "memory", "sent per step", "fits")
    return TextTable("plan", headings, tuple(rows), tuple(notes))


def _memory(plans: Sequence[TrialPlan]) -> TextTable:
    from xmcbench.reporting import TextTable
    from xmcbench.reporting.numbers import format_value

    parts = list(plans[0].memory.parts())
    rows = [
        (_name(plan.trial, plans), *(format_value(value, "bytes") for value in plan.memory.parts().values()))
        for plan in plans
    ]
    note = "peak: the first five, plus the largest of embeddings + activations + scores, refresh, search"
    return TextTable("memory per worker", ("trial", *parts), tuple(rows), (note,))


def _name(trial: Trial, plans: Sequence[TrialPlan]) -> str:
    several = len({plan.trial.dataset for plan in plans}) > 1
    return f"{trial.dataset}/{trial.label}" if several else trial.label
