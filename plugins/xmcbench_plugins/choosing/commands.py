"""`xmcbench tune`: which method a dataset needs, by held-out training queries; its model, and a suite with it."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from xmcbench.cli.options import INTERRUPTED, DataDir, DryRun, EncoderName, StoreDir, dataset_names, names_in
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo, listing, patience

if TYPE_CHECKING:
    from xmcbench.runs.runner import Settings
    from xmcbench.trial.record import Record
    from xmcbench_plugins.choosing.choice import Candidate, Choosing, Chosen

METHODS = "popular,tfidf-nn,linear-ovr,omikuji-plt,pecos-xrlinear,dexml,prime,sparse-ranker,memory"
EVALUATIONS, PATIENCE = 10, 3  # of held-out queries along a training, and those without a rise that end it
SHOWN = ("P@1", "P@5", "nDCG@5", "R@10")  # of the test split


def tune(
    dataset: Annotated[
        str, Argument(metavar="DATASET", help="A name that `xmcbench datasets` lists.", autocompletion=dataset_names)
    ],
    methods: Annotated[
        str | None,
        Option(metavar="NAMES", help="Methods to try, with commas between them.", show_default="the usual ones"),
    ] = None,
    budget: Annotated[
        str, Option(metavar="LIMIT=N", help="Budget of a training, as encoder_tokens=2_000_000 or epochs=10.")
    ] = "epochs=10",
    minutes: Annotated[
        float | None, Option(min=0.1, metavar="N", help="End within this number of minutes.", show_default="no limit")
    ] = None,
    samples: Annotated[
        int, Option(min=1, metavar="N", help="Largest number of configurations to try of each of the best methods.")
    ] = 9,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The suite to write.", show_default="tuned-DATASET.yaml")
    ] = None,
    dry_run: DryRun = False,
    encoder: EncoderName = None,
    data: DataDir = Path("data"),
    store: StoreDir = Path("results"),
) -> None:
    """Say which method to use: try methods and settings on held-out training queries, then train the best on all.

    Quick methods come first. The test split is scored once, at the end, for the method that was chosen; a suite with
    it is written.
    """
    from xmcbench.data.prepared import load_card
    from xmcbench.runs.runner import Runner, Settings
    from xmcbench.runs.tuning import queries_of_sample
    from xmcbench_plugins.choosing.choice import Choosing

    started, path = time.monotonic(), Path(f"tuned-{dataset}.yaml") if out is None else out
    if not path.name or path.is_dir():
        raise XMCBenchError(f"--out {path}: found a folder, expected the name of a file")
    limits = _budget(budget)
    names = list(dict.fromkeys(names_in(methods) or names_in(METHODS)))
    if methods is not None:
        _make_environments(names, dry_run)
    suite: dict[str, Any] = {
        "name": f"tune-{dataset}",
        "datasets": [dataset],
        "budget": limits,
        "methods": {name: _entry(name, encoder) for name in names},
        "selection": {
            "queries": queries_of_sample(load_card(dataset, data).num_train),
            "evaluations": EVALUATIONS,
            "patience": PATIENCE,
        },
    } | ({"encoder": encoder} if encoder else {})
    with tempfile.TemporaryDirectory(prefix="xmcbench-") as folder:
        searched = Path(folder) / "tune.yaml"
        _write(suite, searched)
        with patience("opening the dataset, planning"):
            settings = Settings(suite=searched, data=data, store=store, retry=True, changed=True, command=sys.argv)
            runner = Runner(settings)
            choosing = Choosing(runner, minutes, samples, started)
        _print_plan(choosing, minutes)
        if dry_run:
            raise Exit
        chosen = _chosen(choosing)
        echo(f"\n{_table(chosen)}\n")
        _write({"name": f"tuned-{dataset}", "datasets": [dataset], **_final(chosen)}, path)
    record = _train_on_all(Settings(suite=path, data=data, store=store, command=sys.argv), chosen)
    echo("\n".join(_answer(chosen, record, choosing, path)))
    raise Exit(0 if record.metrics else 1)


def _make_environments(names: Sequence[str], dry_run: bool) -> None:
    """Make the environments of methods that were asked for by name, with a line that says so."""
    from xmcbench.plugins.registry import registry

    for name in names:
        environment = getattr(registry().method(name).thing, "environment", None)
        if environment is None or environment.python() is not None:
            continue
        packages = " ".join((*environment.no_dependencies, *environment.requirements))
        echo(f"{name} runs in an environment of its own: {'would install' if dry_run else 'installing'} {packages}")
        if not dry_run:
            environment.make()


def _entry(name: str, encoder: str | None) -> dict[str, Any]:
    """The entry of a method in a suite; the encoder that is asked for is also that of a second stage's first method."""
    from xmcbench.plugins.registry import registry

    field = registry().method(name).thing.Config.model_fields.get("first")
    if encoder is None or field is None:
        return {"method": name}
    return {"method": name, "first": {**field.default, "encoder": encoder}}


def _print_plan(choosing: Choosing, minutes: float | None) -> None:
    """Print what is tried and about how long that takes."""
    from xmcbench.reporting.words import enumeration

    rows = []
    for each in choosing.candidates:
        expected = "unknown" if each.seconds is None else _minutes(each.seconds)
        rows.append((each.label, "-" if each.left else expected, each.reason if each.left else "own settings first"))
    echo(listing(rows, ("method", "a training", "plan"), colalign=("left",) * 3))
    trial = choosing.candidates[0].trial
    assert trial.selection is not None
    unknown = [each.label for each in choosing.candidates if each.seconds is None and not each.left]
    total = _minutes(choosing.planned_seconds()) + (
        f" (without {enumeration(unknown, len(unknown))}, which cannot be predicted)" if unknown else ""
    )
    search = f"up to {choosing.samples} settings of each of the best methods while there is time"
    limit = f"ends within {minutes:g} minutes" if minutes else f"then {search}; --minutes N sets a limit"
    echo(
        f"\n{trial.selection.queries:,} training queries are held out; {choosing.metric} on them decides. "
        f"About {total} for one training of each, and the last one on all queries; {limit}.\n"
    )


def _chosen(choosing: Choosing) -> Chosen:
    from xmcbench.runs.progress import display

    try:
        with display() as shown, choosing.runner.executor:
            return choosing.run(shown)
    except KeyboardInterrupt:
        echo("interrupted: the same command continues with what is in the store", err=True)
        raise Exit(INTERRUPTED) from None


def _final(chosen: Chosen) -> dict[str, Any]:
    """The keys of the suite that trains what was chosen on all training queries."""
    return {"budget": chosen.final.budget.limits(), "methods": {chosen.best.label: chosen.final.entry}}


def _train_on_all(settings: Settings, chosen: Chosen) -> Record:
    """The trial on all training queries, which is scored on the test split."""
    from xmcbench.runs.progress import display
    from xmcbench.runs.runner import Runner
    from xmcbench.runs.saved_model import leave_calibration
    from xmcbench.runs.tuning import note_chosen

    runner = Runner(settings)
    plan = runner.plan()
    runner.chosen[plan[0].trial.key] = chosen.as_dict()
    if chosen.calibration is not None and plan[0].record is None:
        leave_calibration(runner.store, plan[0].trial, chosen.calibration)
    echo(f"training {chosen.best.label} on all training queries, then scoring it once on the test split")
    try:
        with display() as shown, runner.executor:
            records = runner.run(plan, shown)
    except KeyboardInterrupt:
        echo(f"interrupted: `xmcbench run {settings.suite}` continues", err=True)
        raise Exit(INTERRUPTED) from None
    note_chosen(runner, records)
    return records[0]


def _table(chosen: Chosen) -> str:
    """What was tried, the best first."""
    rows = []
    for each in chosen.ranked:
        apart = chosen.differences.get(each.label)
        low, high = apart.interval if apart else (0.0, 0.0)
        differs = f"{100 * apart.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})" if apart else "-"
        rows.append((each.label, f"{100 * each.value:.1f}", differs, _minutes(each.took), _remark(each)))
    headers = ("method", f"{chosen.metric}, held out", "from the best (95 %)", "training", "settings, curve")
    return listing(rows, headers, colalign=("left", "right", "right", "right", "left"))


def _remark(candidate: Candidate) -> str:
    """What the curve shows, and how many settings were tried."""
    if candidate.parts:
        return f"of {' and '.join(part.label for part in candidate.parts)}"
    notes = [f"{len(candidate.records)} tried"] if len(candidate.records) > 1 else []
    if candidate.early:
        notes.append("best at an early evaluation: a shorter schedule was tried too")
    elif candidate.late:
        notes.append("still rising at the end: a larger --budget may help")
    return "; ".join(notes)


def _answer(chosen: Chosen, record: Record, choosing: Choosing, path: Path) -> list[str]:
    """The sentences that answer the question, and the next command."""
    from xmcbench.reporting.words import enumeration

    best = chosen.best
    within = [label for label, apart in chosen.differences.items() if not apart.significant]
    lines = [f"Use {best.label}."]
    if within:
        lines.append(f"{enumeration(within, len(within))} {'is' if len(within) == 1 else 'are'} within noise.")
    for each in chosen.ranked[1:]:
        apart = chosen.differences[each.label]
        if apart.significant and (words := _apart(each, best, apart.value)):
            lines.append(words)
    sentences = [" ".join(lines)]
    sentences += [f"{each.label} was not tried: {each.reason}." for each in choosing.candidates if each.left]
    if record.metrics:
        scores = ", ".join(f"{name} {100 * record.metrics[name]:.1f}" for name in SHOWN if name in record.metrics)
        sentences.append(f"On the test split, scored once after the choice: {scores}.")
    else:
        failure = record.failure.message.splitlines()[0] if record.failure else str(record.status)
        sentences.append(f"The training on all queries failed: {failure}.")
    sentences.append(f"This took {_minutes(choosing.elapsed)}.")
    sentences.append(f'Next: `xmcbench predict {record.key} --text "..."`; `xmcbench run {path}` repeats it.')
    return sentences


def _apart(each: Candidate, best: Candidate, value: float) -> str:
    """How a method that is worse compares in time, where it is at least twice as fast or slow."""
    points, times = abs(100 * value), max(best.took, 0.1) / max(each.took, 0.1)
    place = "below" if value < 0 else "above"
    if times >= 2:
        return f"{each.label} is {points:.1f} points {place} and trains {times:.0f} times faster."
    if times <= 0.5:
        return f"{each.label} is {points:.1f} points {place} and trains {1 / times:.0f} times slower."
    return f"{each.label} is {points:.1f} points {place}."


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _write(suite: Mapping[str, Any], path: Path) -> None:
    """Write a suite file."""
    import yaml

    from xmcbench.files.atomic import atomic_write

    text = yaml.safe_dump(dict(suite), sort_keys=False, allow_unicode=True)
    with atomic_write(path) as file:
        file.write(f"# Written by `xmcbench tune`.\n{text}".encode())


def _budget(text: str) -> dict[str, float]:
    """The budget `LIMIT=N`, or several with commas between them."""
    try:
        pairs = (part.split("=") for part in text.split(","))
        limits = {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise XMCBenchError(f"--budget {text}: expected a limit and a number, as in epochs=10") from None
    return {name: int(value) if value.is_integer() else value for name, value in limits.items()}


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench tune`."""
    register(Command("tune", tune))
