"""`xmcbench plan`: predict the cost of a suite's trials before any of them runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from xmcbench.cli.options import (
    AllowIncomplete,
    DataDir,
    DatasetNames,
    EncoderName,
    Only,
    Sets,
    StoreDir,
    SuitePath,
    TableFormat,
    TeacherPrice,
)
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    from xmcbench.engine.planning.trials import Machine, TrialPlan
    from xmcbench.reporting.text_table import TextTable


def plan(
    suite: SuitePath,
    accelerator: Annotated[
        str, Option(metavar="NAME", help="A device, such as h100; here measures this machine.")
    ] = "a100-80gb",
    workers: Annotated[
        int | None, Option(min=1, metavar="N", help="Devices per trial.", show_default="the suite's")
    ] = None,
    utilisation: Annotated[
        float, Option(min=0.01, max=1, metavar="SHARE", help="Assumed fraction of peak throughput.")
    ] = 0.3,
    query_tokens: Annotated[
        int | None, Option(min=1, metavar="N", help="Tokens per query of a dataset that is not on disk.")
    ] = None,
    label_tokens: Annotated[
        int | None, Option(min=1, metavar="N", help="Tokens per label of a dataset that is not on disk.")
    ] = None,
    only: Only = None,
    sets: Sets = None,
    datasets: DatasetNames = None,
    encoder: EncoderName = None,
    allow: AllowIncomplete = False,
    format: TableFormat = "table",
    teacher_price: TeacherPrice = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Predict operations, hours, memory and network traffic of each trial of a suite, without running any.

    Trials that ask a teacher have a line with its calls, what the store knows of its answers, tokens and money.

    Exit code: 0 every trial fits into memory, budget and the suite's time limit; 1 a trial does not; 2 invalid input.
    """
    from xmcbench.data.extent import extent
    from xmcbench.data.prepared import default_cache_dir
    from xmcbench.engine.planning.trials import Planner, fits, machine_called, too_long, too_much
    from xmcbench.reporting.text_table import render_tables
    from xmcbench.runs.plan import remarks, select
    from xmcbench.suite.resources import Share
    from xmcbench.suite.suite import load_suite
    from xmcbench.teachers.costs import Price, teacher_costs
    from xmcbench.trial.budget import PassTooLargeError

    machine = replace(machine_called(accelerator), utilisation=utilisation)
    asked = load_suite(suite, data, sets or (), datasets or (), encoder, on_disk=False, allow=allow)
    planner = Planner(data, default_cache_dir(), machine, query_tokens, label_tokens)
    share = Share(workers=workers)
    extents = {name: extent(name, data, default_cache_dir()) for name in asked.datasets}
    trials = select(asked.trials(dict.fromkeys(asked.datasets, ""), extents), only or ())
    seeds = Counter((trial.dataset, trial.label) for trial in trials)
    plans, left_out, failing = [], [], []
    first = {(trial.dataset, trial.label): trial for trial in reversed(trials)}  # once for all seeds
    for trial in reversed(first.values()):
        try:
            plans.append(planner.plan(trial, asked.needs(trial, share).workers))
        except PassTooLargeError as problem:
            failing.append(f"{trial.dataset}/{trial.label}: before the first step {problem}")
        except XMCBenchError as problem:
            left_out.append(f"{trial.dataset}/{trial.label}: {problem}")
    echo(render_tables(_tables(plans, seeds, machine) if plans else [], format))
    steps = {(plan.trial.dataset, plan.trial.label): plan.ledger.steps for plan in plans}
    lines = {"derived from data and budget": asked.followed(trials), "note": remarks(trials, extents, steps)}
    lines["note"] += teacher_costs(trials, extents, store, Price.parse(teacher_price))
    refused = [f"{plan.trial.dataset}/{plan.trial.label} {r}" for plan in plans if (r := too_much(plan, machine))]
    overlong = [reason for plan in plans if (reason := too_long(plan, asked.timeout))]
    for kind, texts in (
        *lines.items(),
        ("not planned", left_out),
        ("fails", failing),
        ("does not fit", refused),
        ("too long", overlong),
    ):
        for text in texts:
            echo(f"{kind}: {text}", err=True)
    raise Exit(1 if overlong or failing or any(fits(plan, machine) == "no" for plan in plans) else 0)


def _tables(plans: Sequence[TrialPlan], seeds: Counter[tuple[str, str]], machine: Machine) -> list[TextTable]:
    """The costs of trials, and what takes the memory of a worker."""
    from xmcbench.engine.planning.trials import MARGIN, fits
    from xmcbench.reporting.text_table import TextTable, format_value

    several = len({plan.trial.dataset for plan in plans}) > 1
    names = [f"{plan.trial.dataset}/{plan.trial.label}" if several else plan.trial.label for plan in plans]
    costs = []
    for name, plan in zip(names, plans, strict=True):
        counts = (plan.ledger.steps, round(plan.pool), plan.ledger.encoder_tokens, plan.ledger.flops)
        sent = format_value(plan.network, "bytes") if plan.workers > 1 else "-"
        needs = (format_value(plan.device_hours, "hours"), format_value(plan.memory.total, "bytes"), sent)
        texts = (format_value(count, "count") for count in counts)
        costs.append((name, str(plan.workers), *texts, *needs, fits(plan, machine)))
    total = sum(plan.device_hours * seeds[plan.trial.dataset, plan.trial.label] for plan in plans)
    notes = [
        f"{machine.name} ({machine.source}), {machine.utilisation:.0%} of its peak assumed; "
        f"all trials with their seeds, on an idle machine: {format_value(total, 'hours')} device hours",
        f"fits: close if memory is within {MARGIN:.0%} of the device's. Memory and sent bytes are those of one device",
        *dict.fromkeys(note for plan in plans for note in plan.notes),
    ]
    headings = ("trial", "devices", "steps", "pool", "tokens", "flops", "device hours", "memory", "sent", "fits")
    parts = [plan.memory.parts() for plan in plans]
    sizes = [[format_value(value, "bytes") for value in sizes_of_plan.values()] for sizes_of_plan in parts]
    memory = [(name, *columns) for name, columns in zip(names, sizes, strict=True)]
    note = (
        "peak: the sum of the first five columns and the largest of a step, a refresh and a search; "
        "during a step a GPU holds embeddings and scores, or what the backward pass needs"
    )
    return [
        TextTable("plan", headings, costs, notes),
        TextTable("memory per worker", ("trial", *parts[0]), memory, (note,)),
    ]


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench plan`."""
    register(Command("plan", patience("plan")(plan)))
