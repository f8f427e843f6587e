"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from xmcbench.cli.completion import dataset_names, suite_names, trial_names

RUN = typer.Argument(
    metavar="RUN", help="A trial: its key or the start of it, or dataset/label.", autocompletion=trial_names
)

RunName = Annotated[str, RUN]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The seed, where RUN means trials of several seeds.")]
SuitePath = Annotated[
    Path,
    typer.Argument(
        help="The suite: a file, or a name of a bundled suite, as in quickstart.",
        show_default=False,
        autocompletion=suite_names,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only trials whose label, or dataset/label, matches. May be repeated."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in budget.steps=10.")
]
DatasetNames = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", metavar="NAME", help="Use this dataset instead of the suite's.", autocompletion=dataset_names
    ),
]
DatasetName = Annotated[str, typer.Argument(help="Name of a dataset.", autocompletion=dataset_names)]
EncoderName = Annotated[str | None, typer.Option(metavar="NAME", help="Use this encoder instead of the suite's.")]
TableFormat = Annotated[Literal["table", "markdown", "latex", "csv"], typer.Option(help="Output format.")]
DataDir = Annotated[Path, typer.Option(envvar="XMCBENCH_DATA", help="Folder of datasets.")]
StoreDir = Annotated[Path, typer.Option(envvar="XMCBENCH_STORE", help="Folder of results.")]
