"""Names that a shell offers when Tab is pressed. Where none begins with the typed text, the shell offers files."""

from __future__ import annotations

from pathlib import Path

import typer


def suite_names() -> list[str]:
    """The bundled suites."""
    from xmcbench.suite.suite import bundled_names

    return bundled_names()


def dataset_names(ctx: typer.Context) -> list[str]:
    """The catalogue's datasets and those in the folder of datasets; no families, whose names contain a size."""
    from xmcbench.data.prepared import default_data_dir
    from xmcbench.data.source import own_names

    known = {name for name in _registered("dataset") if "<" not in name}
    return sorted(known | {*own_names(Path(ctx.params.get("data") or default_data_dir()))})


def method_names() -> list[str]:
    """The installed methods."""
    return _registered("method")


def tracker_names() -> list[str]:
    """The installed trackers."""
    return _registered("tracker")


def plugin_names() -> list[str]:
    """Everything that plugins register, of all kinds."""
    from xmcbench.plugins.kinds import HOOKS

    return sorted({name for kind in HOOKS for name in _registered(kind)})


def trial_names(ctx: typer.Context) -> list[str]:
    """The trials of the store, as dataset/label."""
    from xmcbench.trial.store import Store

    records = Store(Path(ctx.params.get("store") or "results")).records()
    return sorted({f"{record.trial.dataset}/{record.trial.label}" for record in records})


def _registered(kind: str) -> list[str]:
    from xmcbench.plugins.registry import registry

    return [registered.name for registered in registry().all(kind)]
