"""`xmcbench tables`: the cost and quality of the cells of a suite's sweep, from stored records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmcbench.cli.options import DataDir, DatasetNames, EncoderName, Sets, StoreDir, SuitePath, TableFormat
from xmcbench.runs.terminal import echo

if TYPE_CHECKING:
    from xmcbench.suite.suite import Suite
    from xmcbench.suite.tables import Target
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store
    from xmcbench.trial.trial import Trial


def tables(
    suite: SuitePath,
    format: TableFormat = "table",
    sets: Sets = None,
    datasets: DatasetNames = None,
    encoder: EncoderName = None,
    data: DataDir = Path("data"),
    store: StoreDir = Path("results"),
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=VALUE", help="Also show what was spent to reach it on held-out queries: P@1=50."),
    ] = None,
) -> None:
    """Print the tables of a suite: its cells, quality at smaller budgets, and quality against cost. Runs nothing."""
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.runs.tuned_trials import stored_samples, tuned_trials

    settings = Settings(
        suite=suite,
        data=data,
        store=store,
        sets=sets or (),
        datasets=datasets or (),
        encoder=encoder,
    )
    runner = Runner(settings)
    tune = runner.suite.tune
    plan = runner.plan_trials(tuned_trials(runner, stored_samples(runner))) if tune else runner.plan()
    targets = [_target(text) for text in to or ()]
    echo(of_suite(runner.suite, [(planned.trial, planned.record) for planned in plan], runner.store, format, targets))


def _target(text: str) -> Target:
    """The target `METRIC=VALUE`."""
    from xmcbench.errors import XMCBenchError
    from xmcbench.suite.tables import Target

    if target := Target.parse(f"to {text}"):
        return target
    raise XMCBenchError(f"--to {text}: expected a metric and its value in per cent, as in P@1=50")


def of_suite(
    suite: Suite,
    outcomes: Iterable[tuple[Trial, Record | None]],
    store: Store,
    format: str = "table",
    targets: Sequence[Target] = (),
) -> str:
    """The tables of a suite: its own, quality at smaller budgets and against cost, ranks, targets, equal budgets."""
    from xmcbench import reporting
    from xmcbench.reporting.budgets import check_equal_budgets
    from xmcbench.trial.build import build_method

    def idle(trial: Trial) -> frozenset[str]:
        return build_method(trial).config.unused()

    outcomes = list(outcomes)
    entries = {variant.label: variant.entry for variant in suite.variants}
    cells = reporting.cells(outcomes, entries, idle)
    published = reporting.published_rows() if any(shape.beside for shape in suite.tables.values()) else ()
    grids = [reporting.cell_table(title, shape, cells, published) for title, shape in suite.tables.items()]
    if suite.selection:
        grids += reporting.smaller_budget_tables(cells, suite.selection.metric, suite.selection.evaluations)
    metric = "P@1" if "P@1" in suite.metrics else suite.metrics[0]
    grids.append(reporting.cost_table(cells, metric))
    grids += reporting.rank_tables(cells, metric, store.resampled)
    grids += [reporting.time_to_quality_table([(cell.label, cell.records) for cell in cells], to) for to in targets]
    text = reporting.render_tables(grids, format)
    records = [record for _, record in outcomes if record]
    checks = [str(check) for check in check_equal_budgets(records, suite.equal)] if suite.equal else []
    return text if format == "csv" else "\n\n".join([text, *checks])
