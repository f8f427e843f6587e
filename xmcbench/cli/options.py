"""Arguments and options that several commands share, and the names that a shell offers for them when Tab is pressed.

Where no name begins with the typed text, the shell offers files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Context, Option


def _registered(kind: str) -> list[str]:
    from xmcbench.plugins.registry import registry

    return [registered.name for registered in registry().all(kind)]


def method_names() -> list[str]:
    """The installed methods."""
    return _registered("method")


def tracker_names() -> list[str]:
    """The installed trackers."""
    return _registered("tracker")


def executor_names() -> list[str]:
    """The installed executors."""
    return _registered("executor")


def importer_names() -> list[str]:
    """The formats that `xmcbench datasets import` reads."""
    return _registered("importer")


def format_names() -> list[str]:
    """The formats that `xmcbench leaderboard` writes."""
    from xmcbench.reporting.leaderboard_text import FORMATS

    return [*FORMATS, *_registered("format")]


def names_in(text: str | None) -> list[str]:
    """The names in an option, with commas between them.

    >>> names_in("P@1, nDCG@5"), names_in(None)
    (['P@1', 'nDCG@5'], [])
    """
    return [name.strip() for name in text.split(",")] if text else []


def suite_names() -> list[str]:
    """The bundled suites."""
    from xmcbench.suite.suite import bundled_names

    return bundled_names()


def dataset_names(ctx: Context) -> list[str]:
    """The catalogue's datasets and those in the folder of datasets; no families, whose names contain a size."""
    from xmcbench.data.prepared import default_data_dir
    from xmcbench.data.source import own_names

    known = {name for name in _registered("dataset") if "<" not in name}
    return sorted(known | {*own_names(Path(ctx.params.get("data") or default_data_dir()))})


def plugin_names() -> list[str]:
    """Everything that plugins register, of all kinds."""
    from xmcbench.plugins.hookspecs import HOOKS

    return sorted({name for kind in HOOKS for name in _registered(kind)})


def trial_names(ctx: Context) -> list[str]:
    """The trials of the store, as dataset/label."""
    from xmcbench.trial.store import Store

    records = Store(Path(ctx.params.get("store") or "results")).records()
    return sorted({f"{record.trial.dataset}/{record.trial.label}" for record in records})


RUN = Argument(
    metavar="RUN", help="A trial: its key, the beginning of its key, or dataset/label.", autocompletion=trial_names
)
RunName = Annotated[str, RUN]
Seed = Annotated[int | None, Option(metavar="N", help="The seed, if RUN matches trials with several seeds.")]
SuitePath = Annotated[
    Path,
    Argument(
        help="The suite: a file, or the name of a bundled suite, such as quickstart.",
        show_default=False,
        autocompletion=suite_names,
    ),
]
Only = Annotated[
    list[str] | None,
    Option(metavar="GLOB", help="Only trials whose label, or dataset/label, matches. May be repeated."),
]
Sets = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Override a key, as in budget.steps=10.")]
DatasetNames = Annotated[
    list[str] | None,
    Option("--dataset", metavar="NAME", help="Use this dataset instead of the suite's.", autocompletion=dataset_names),
]
DatasetName = Annotated[str, Argument(help="Name of a dataset.", autocompletion=dataset_names)]
AllowIncomplete = Annotated[
    bool,
    Option("--allow", help="Train an encoder even if its folder lacks weights, or has extra ones or other shapes."),
]
EncoderName = Annotated[str | None, Option(metavar="NAME", help="Use this encoder instead of the suite's.")]
TableFormat = Annotated[Literal["table", "markdown", "latex", "csv"], Option(help="Output format.")]
DataDir = Annotated[Path, Option(envvar="XMCBENCH_DATA", help="Folder of datasets.")]
TeacherPrice = Annotated[
    str | None,
    Option(metavar="IN,OUT", help="Money per million tokens of a teacher's prompts and answers, as 0.15,0.60."),
]
StoreDir = Annotated[Path, Option(envvar="XMCBENCH_STORE", help="Folder of results.")]
DryRun = Annotated[bool, Option("--dry-run", help="Show the plan and run nothing.")]
INTERRUPTED = 130  # exit code, as shells have it
