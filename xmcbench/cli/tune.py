"""`xmcbench tune`: search the settings of methods on one dataset, and write a suite with what was found."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmcbench.cli.options import DataDir, EncoderName, StoreDir, dataset_names
from xmcbench.runs.terminal import echo, patience

if TYPE_CHECKING:
    from xmcbench.runs.runner import Runner
    from xmcbench.trial.trial import Trial

METHODS = "popular,tfidf-nn,dexml"


def tune(
    dataset: Annotated[
        str,
        typer.Argument(metavar="DATASET", help="A name that `xmcbench datasets` lists.", autocompletion=dataset_names),
    ],
    methods: Annotated[str, typer.Option(metavar="NAMES", help="Methods, with commas between them.")] = METHODS,
    budget: Annotated[
        str, typer.Option(metavar="LIMIT=N", help="Of a training, as encoder_tokens=2_000_000 or epochs=10.")
    ] = "epochs=10",
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Configurations to try per method.")] = 9,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The suite to write.", show_default="tuned-DATASET.yaml")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")] = False,
    encoder: EncoderName = None,
    data: DataDir = Path("data"),
    store: StoreDir = Path("results"),
) -> None:
    """Search the settings of methods by short trials on held-out queries; write a suite with the best.

    Half of the samples' cost goes to the best few: each begins with a ninth of the budget. The test split is used only
    for the trials with the settings that were chosen.
    """
    from xmcbench.api import board_of
    from xmcbench.cli.run import print_plan, run_all
    from xmcbench.data.prepared import load_card
    from xmcbench.runs.plan import exit_code
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.runs.tuned_trials import queries_of_sample

    path = Path(f"tuned-{dataset}.yaml") if out is None else out
    if not path.name or path.is_dir():
        from xmcbench.errors import XMCBenchError

        raise XMCBenchError(f"--out {path}: found a folder, expected the name of a file")
    searching = path.with_name(f"{path.stem}.search.yaml")
    plain: dict[str, Any] = {
        "name": f"tuned-{dataset}",
        "datasets": [dataset],
        "budget": _budget(budget),
        "methods": {name: {"method": name} for name in methods.split(",")},
        "selection": {"queries": queries_of_sample(load_card(dataset, data).num_train)},
    }
    said = plain | ({"encoder": encoder} if encoder else {})
    settings = Settings(suite=searching, data=data, store=store, command=sys.argv)
    _write(said, searching)
    with patience("opening the dataset, planning"):
        search = {"num_samples": samples, "scheduler": "halving", "space": _spaces(Runner(settings))}
        _write(said | {"tune": search}, searching)
        runner = Runner(settings)
        plan = runner.plan()
        print_plan(runner, plan)
    if dry_run:
        return
    records = run_all(runner, plan, [])
    echo(f"\n{board_of(records, runner.suite.metrics, runner.store)}")
    found = {record.trial.label: {"method": record.trial.method, **_used(record.trial)} for record in records}
    _write(plain | {"methods": found}, path)
    echo(f"\n{path}: the methods with the settings that were found; `xmcbench run {path}` runs them again")
    raise typer.Exit(exit_code(records))


def _write(suite: Mapping[str, Any], path: Path) -> None:
    """Write a suite file."""
    import yaml

    from xmcbench.files.atomic import atomic_write

    text = yaml.safe_dump(dict(suite), sort_keys=False, allow_unicode=True)
    with atomic_write(path) as file:
        file.write(f"# Written by `xmcbench tune`.\n{text}".encode())


def _used(trial: Trial) -> dict[str, Any]:
    """The settings of a trial that have an effect."""
    from xmcbench.trial.method import build_method

    unused = build_method(trial).config.unused()
    return {name: value for name, value in trial.config.items() if name not in unused}


def _budget(text: str) -> dict[str, float]:
    """The budget `LIMIT=N`, or several with commas between them."""
    from xmcbench.errors import XMCBenchError

    try:
        pairs = (part.split("=") for part in text.split(","))
        limits = {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise XMCBenchError(f"--budget {text}: expected a limit and a number, as in epochs=10") from None
    return {name: int(value) if value.is_integer() else value for name, value in limits.items()}


def _spaces(runner: Runner) -> dict[str, dict[str, Any]]:
    """The settings to search of each method, around those that follow from data and budget."""
    from xmcbench.trial.method import build_method

    methods = {trial.label: build_method(trial) for trial in runner.trials()}
    return {label: method.search_space(method.config) for label, method in methods.items()}
