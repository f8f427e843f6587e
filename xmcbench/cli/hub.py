"""`xmcbench hub`: the Hugging Face hub as a place for trained models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from xmcbench.cli.options import DataDir, RunName, Seed, StoreDir
from xmcbench.runs.terminal import echo

app = typer.Typer(no_args_is_help=True, help="Publish trained models on the Hugging Face hub.")

LAYOUT = "modules.json"  # in a model that sentence-transformers opens


@app.callback()
def _hub() -> None:
    pass


@app.command("push")
def push(
    run: RunName,
    repository: Annotated[str, typer.Argument(metavar="REPO", help="A model repository, as in user/name.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files and the card; upload nothing.")] = False,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Upload the model of a finished trial with its record and a model card.

    A model that sentence-transformers opens has the texts of its labels beside it.
    """
    from xmcbench.cli.find import find_trial
    from xmcbench.cli.predict import label_texts
    from xmcbench.files.hub import upload
    from xmcbench.reporting.model_card import model_card
    from xmcbench.reporting.submission import without_paths
    from xmcbench.runs.saved_model import checked_model
    from xmcbench.trial.record_file import encode
    from xmcbench.trial.store import Store

    place = Store(store)
    record = find_trial(place, run, seed)
    model = checked_model(record, place)
    files: dict[str, Path | bytes] = {
        path.relative_to(model).as_posix(): path for path in sorted(model.rglob("*")) if path.is_file()
    }
    if LAYOUT in files:
        files["labels.json"] = json.dumps(list(label_texts(record, data)), ensure_ascii=False).encode()
    files["record.json"] = encode(without_paths(record).without_secrets())
    card = model_card(record, repository, LAYOUT in files)
    files["README.md"] = card.encode()
    if dry_run:
        echo("\n".join((*files, "", card)))
        return
    echo(upload(repository, files, f"{record.trial.dataset}/{record.trial.label}, {record.key}", private))
