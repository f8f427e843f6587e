"""`xmcbench answer-cost`: quality beside what an answer of trained models costs in milliseconds, memory and disk.

Each model is loaded in a process of its own and answers as `xmcbench serve` does: it stays loaded, with its calibrated
threshold where it has one. HTTP is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from xmcbench.cli.options import DataDir, Seed, StoreDir
from xmcbench.errors import UnknownNameError, XMCBenchError, check_extra, reason_of
from xmcbench.runs.terminal import echo, listing, patience

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np

    from xmcbench.data import DatasetCard
    from xmcbench.evaluation.evaluator import Scores
    from xmcbench.trial.predictions import Predictions
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store
    from xmcbench_plugins.serving.trained import Trained

WITHIN = (5, 20, 100)  # milliseconds a query for which a model is named
MEGA = 1e6
HEADINGS = ("ms", "99 %", "queries/s", "first s", "memory", "disk", "recall of the search")


@dataclass(frozen=True)
class Cost:
    """What the answers of one model cost."""

    name: str
    dataset: str
    metrics: dict[str, float]  # in 0..1
    interval: tuple[float, float] | None  # of the first metric, 95 % over texts; None: its evaluator gives none
    scored: int  # test texts that the metrics are of
    alone_ms: float  # of a text that is asked alone, the median over texts
    slow_ms: float  # below it are 99 of 100 texts
    per_second: float  # texts in one batch
    first_seconds: float  # from the start of loading to the first answer
    memory: int  # bytes of the process and of those that it started, after all answers
    disk: int  # bytes of the model's files
    recall: tuple[float, float, float] | None  # of an approximate search, with its 95 % interval; None: it has none
    lower_is_better: tuple[str, ...] = ()  # evaluators whose lower values are better

    @property
    def decides(self) -> str:
        """The metric that models are compared by."""
        return next(iter(self.metrics))

    def is_lower(self, metric: str) -> bool:
        """Whether lower values of a metric are better."""
        from xmcbench.trial.facts import is_lower  # imports pydantic

        return is_lower(metric, self.lower_is_better)

    @property
    def worth(self) -> float:
        """How good the model is by that metric, so that more is better."""
        from xmcbench.trial.facts import worth

        return worth(self.decides, self.metrics[self.decides], self.lower_is_better)


def answer_cost(
    runs: Annotated[list[str], Argument(metavar="RUN ...", help="Trials with a model: keys, labels or dataset/label.")],
    metrics: Annotated[str, Option(help="Metrics of quality; the first one decides.")] = "P@5,R@100",
    texts: Annotated[int, Option(min=10, metavar="N", help="Test texts that are asked alone.")] = 300,
    batch: Annotated[
        int,
        Option(
            min=10,
            metavar="N",
            help="Test texts that are asked in one batch. With --search or --vectors, the quality of all models is "
            "that of their answers to these texts; otherwise it is that of the record.",
        ),
    ] = 2000,
    k: Annotated[int, Option("-k", min=1, help="Labels per text.")] = 10,
    search: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="Measure encoders with each of these searches, as in exact,faiss-hnsw,faiss-ivf.",
            show_default="the trial's own",
        ),
    ] = "",
    vectors: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="Measure encoders with each of these kinds of label vectors, as in float32,bf16,int8,pq.",
            show_default="the trial's own",
        ),
    ] = "",
    figures: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder for a figure of quality against milliseconds a dataset.")
    ] = None,
    seed: Seed = None,
    store: StoreDir = Path("results"),
    data: DataDir = Path("data"),
) -> None:
    """Compare trained models by quality and by what an answer costs: milliseconds, memory and disk.

    The models answer test texts as `xmcbench serve` does, one model after the other in processes of their own.
    """
    from xmcbench.reporting.find import find_trial
    from xmcbench.reporting.words import idle_parts
    from xmcbench.trial.store import Store

    place, wanted, changes = Store(store), _names("metrics", metrics), _changes(search, vectors)
    found = [find_trial(place, run, seed) for run in runs]
    records = list({record.key: record for record in found}.values())
    asked = _asked(place, records, changes, wanted, data)
    if figures is not None:
        _check_drawing(figures)
    costs, failures = [], []
    for number, (name, key, change) in enumerate(asked, start=1):
        with patience(f"[{number}/{len(asked)}] {name}"):
            cost = _alone(name, key, change, changes != [{}], wanted, texts, batch, k, store, data)
        if isinstance(cost, Cost):
            costs.append(cost)
        else:
            failures.append(f"{name}: {cost}")
    datasets = {name: [one for one in costs if one.dataset == name] for name in dict.fromkeys(c.dataset for c in costs)}
    idle = {record.trial.label: parts for record in records if (parts := idle_parts(record))}
    never = "\n".join(f"{label}: never ran: {', '.join(parts)}." for label, parts in idle.items())
    if costs:
        echo("\n\n".join([*map(shown, datasets.values()), *filter(None, [never])]))
    if figures is not None:
        from xmcbench_plugins.serving.cost_figure import draw_costs

        for name, own in datasets.items():
            draw_costs(own, path := figures / f"answer-cost-{name}.svg")
            echo(f"wrote {path}", err=True)
    if failures:
        raise XMCBenchError("\n".join(failures))


def _names(option: str, given: str) -> list[str]:
    """The names of a list, each once. Raises XMCBenchError where there is none."""
    names = list(dict.fromkeys(name for name in given.split(",") if name))
    if not names:
        raise XMCBenchError(f"--{option}: found {given!r}, expected names with commas between them")
    return names


def _changes(search: str, vectors: str) -> list[dict[str, str]]:
    """The settings with which each encoder is measured; empty ones are its own. Raises XMCBenchError."""
    from itertools import product
    from typing import get_args

    from xmcbench.engine.search import Backend, VectorKind

    changes = []
    for option, given, kinds in (("search", search, get_args(Backend)), ("vectors", vectors, get_args(VectorKind))):
        names = _names(option, given) if given else []
        if unknown := next((name for name in names if name not in kinds), ""):
            raise UnknownNameError(option, unknown, kinds, f"--{option}")
        changes.append([{option: name} for name in names] or [{}])
    return [first | second for first, second in product(*changes)]


def _asked(
    store: Store, records: Sequence[Record], changes: Sequence[dict[str, str]], metrics: Sequence[str], data: Path
) -> list[tuple[str, str, dict[str, str]]]:
    """Name, key and changed settings of each model to measure.

    A name has the key of its trial where several trials have one label. Raises XMCBenchError for a trial that cannot
    be measured, before any is: it has no model, its dataset is another one now, or it cannot have these settings.
    """
    from collections import Counter

    from xmcbench.runs.saved_model import present_model
    from xmcbench_plugins.serving.trained import same_dataset

    labels, asked = Counter((record.trial.dataset, record.trial.label) for record in records), []
    for record in records:
        trial = record.trial
        if name := next((name for name in metrics if name not in record.metrics), ""):
            raise XMCBenchError(
                f"--metrics: {trial.label} ({record.key}) has no {name}, expected of "
                f"{', '.join(record.metrics)}; xmcbench rescore --metrics {name} adds it"
            )
        for one in (record, *(_record(store, part.key) for part in record.parts)):
            present_model(one, store)
        card = same_dataset(record, data).card
        label = trial.label if labels[trial.dataset, trial.label] == 1 else f"{trial.label} {record.key}"
        asked += [
            (", ".join((label, *change.values())), record.key, change) for change in _possible(record, changes, card)
        ]
    if changes != [{}] and not any(change for _, _, change in asked):
        names = ", ".join(record.trial.label for record in records)
        raise XMCBenchError(f"--search, --vectors: expected an encoder among the trials, found {names}")
    return asked


def _possible(record: Record, changes: Sequence[dict[str, str]], card: DatasetCard) -> Sequence[dict[str, str]]:
    """The settings that the model of a trial is measured with. Raises XMCBenchError where it cannot have them."""
    from xmcbench.engine.vector_method import VectorMethod
    from xmcbench.trial.method import build_method

    trial = record.trial
    if record.parts or not isinstance(build_method(trial), VectorMethod):
        return [{}]
    for change in filter(None, changes):
        changed = build_method(trial.changed(config=trial.config | change))
        assert isinstance(changed, VectorMethod)
        changed.check_search()
        if reason := changed.skip(card):
            raise XMCBenchError(f"{trial.label} on {trial.dataset}: {reason}")
    return changes


def _check_drawing(folder: Path) -> None:
    """Make the folder of the figures. Raises XMCBenchError or OSError where they could not be drawn or written."""
    from tempfile import TemporaryFile

    check_extra("matplotlib", "plots", "drawing figures")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass


def fresh_process() -> ProcessPoolExecutor:
    """A process that has imported nothing, and ends when this one does."""
    import multiprocessing  # `--help` does without these
    from concurrent.futures import ProcessPoolExecutor

    from xmcbench.trial.programs import end_with_parent

    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent)


def _alone(name: str, *given: Any) -> Cost | str:
    """The cost of a model, measured in a fresh process, or why it could not be measured."""
    from concurrent.futures.process import BrokenProcessPool  # `--help` does without it

    with fresh_process() as fresh:
        try:
            return fresh.submit(_measured_or_why, name, *given).result()
        except BrokenProcessPool:
            return "its process was killed, perhaps for lack of memory"


def _measured_or_why(*given: Any) -> Cost | str:
    """What `measured` returns, or the message of what it raises: not every exception can be sent to another process."""
    try:
        return measured(*given)
    except Exception as problem:  # a method or a library may raise anything
        return reason_of(problem)


def measured(
    name: str,
    key: str,
    change: dict[str, str],
    answers: bool,
    metrics: Sequence[str],
    texts: int,
    batch: int,
    k: int,
    store: Path,
    data: Path,
) -> Cost:
    """Load the model of a trial in this process and have it answer, with these settings changed; `name` is its name.

    `answers`: its quality is that of its answers to the batch, not that of the record.
    """
    import numpy as np

    from xmcbench.runs.saved_model import checked_model
    from xmcbench.trial.programs import resident_bytes
    from xmcbench.trial.store import Store
    from xmcbench_plugins.serving.trained import trained_model

    place, start = Store(store), time.perf_counter()
    record = _record(place, key)
    model = trained_model(place, record, data)
    changed, k = _change(model, change), min(k, len(model.labels))
    cut = None if model.calibration is None else model.calibration.cut
    rows = _spread(len(model.dataset.test.texts), batch)
    asked = [model.dataset.test.texts[at] for at in rows]
    alone = [asked[at] for at in _spread(len(asked), texts)]
    with model.method.resident():
        model.rank(alone[:1], k, cut)
        first, seconds = time.perf_counter() - start, []
        for text in alone:
            before = time.perf_counter()
            model.rank([text], k, cut)
            seconds.append(time.perf_counter() - before)
        before = time.perf_counter()
        model.rank(asked, k, cut)
        per_second = len(asked) / (time.perf_counter() - before)
        memory, found = resident_bytes(os.getpid()), model.method.predict(alone, k)
        scores = _of_answers(place, model, changed, rows, metrics) if answers else record
    whole = trained_model(place, record, data)  # a resident model may have rounded its vectors
    _change(whole, change)
    exact = whole.method.predict_exactly(alone, k)
    parts = [_record(place, part.key) for part in record.parts]
    files = [path for one in (record, *parts) for path in checked_model(one, place).rglob("*") if path.is_file()]
    return Cost(
        name=name,
        dataset=record.trial.dataset,
        metrics={name: scores.metrics[name] for name in metrics},
        interval=scores.intervals.get(metrics[0]),
        scored=len(rows) if answers else len(model.dataset.test.texts),
        alone_ms=1000 * float(np.median(seconds)),
        slow_ms=1000 * float(np.percentile(seconds, 99)),
        per_second=per_second,
        first_seconds=first,
        memory=memory,
        disk=sum(path.stat().st_size for path in files),
        recall=None if exact is None else _recall(found, exact),
        lower_is_better=record.lower_is_better,
    )


def _change(model: Trained, change: dict[str, str]) -> bool:
    """Change settings of the model; whether any of them was another one."""
    changed = any(getattr(model.method.config, name) != value for name, value in change.items())
    if change:
        model.method.config = model.method.config.model_copy(update=change)
    return changed


def _of_answers(store: Store, model: Trained, changed: bool, rows: np.ndarray, metrics: Sequence[str]) -> Scores:
    """The quality of the answers to these test texts: those in the store, or new ones of a model that was changed."""
    from xmcbench.evaluation.evaluator import find_evaluators, score_predictions, stored_predictions
    from xmcbench.runs.predicting import predict_test
    from xmcbench.trial.predictions import Predictions

    part = model.dataset.tested_on(rows)
    if changed:
        predictions, _ = predict_test(model.method, part.test.texts, part.ignore_test)
    else:
        whole = stored_predictions(store, model.record, model.dataset)
        predictions = Predictions(whole.indices[rows], whole.scores[rows])
    return score_predictions(predictions, part, metrics, find_evaluators(metrics))


def _record(store: Store, key: str) -> Record:
    record = store.record(key)
    if record is None:
        raise XMCBenchError(f"{key}: the trial left the store while its model was measured")
    return record


def _spread(total: int, most: int) -> np.ndarray:
    """At most so many evenly spaced rows of `total`."""
    import numpy as np

    return np.unique(np.linspace(0, total - 1, min(total, most)).astype(int))


def _recall(found: Predictions, exact: Predictions) -> tuple[float, float, float]:
    """The share of the exact best labels that an approximate search finds.

    The interval is that of the mean over texts, by the normal approximation; one text leaves all open.
    """
    from xmcbench.trial.predictions import found_by

    shares = found_by(found, exact).mean(axis=1).compressed()
    margin = 1.96 * float(shares.std(ddof=1)) / len(shares) ** 0.5 if len(shares) > 1 else 1.0
    mean = float(shares.mean())
    return mean, max(0.0, mean - margin), min(1.0, mean + margin)


def on_front(costs: Sequence[Cost]) -> list[bool]:
    """Of each model, whether no other one is at least as good by the first metric in less time."""
    return [
        not any(
            (other.alone_ms <= one.alone_ms and other.worth > one.worth)
            or (other.alone_ms < one.alone_ms and other.worth >= one.worth)
            for other in costs
        )
        for one in costs
    ]


def shown(costs: Sequence[Cost]) -> str:
    """The table of the models of one dataset, best first, and which one to take within some milliseconds."""
    from xmcbench.reporting.notes import LOWER

    names = list(costs[0].metrics)
    titles = [f"{name}{LOWER}" if costs[0].is_lower(name) else name for name in names]
    ordered = sorted(costs, key=lambda one: (-one.worth, one.alone_ms))
    rows = []
    for one, first in zip(ordered, on_front(ordered), strict=True):
        recall = "-" if one.recall is None else "{:.1f} ({:.1f} to {:.1f})".format(*(100 * x for x in one.recall))
        values = [f"{100 * one.metrics[name]:.2f}" for name in names]
        values[0] += "" if one.interval is None else " ({:.1f} to {:.1f})".format(*(100 * x for x in one.interval))
        rows.append((
            one.name + ("*" if first else ""), *values,
            f"{one.alone_ms:.1f}", f"{one.slow_ms:.1f}", f"{one.per_second:,.0f}", f"{one.first_seconds:.1f}",
            f"{one.memory / MEGA:,.0f} MB", f"{one.disk / MEGA:,.1f} MB", recall,
        ))  # fmt: skip
    table = listing(rows, ("model", *titles, *HEADINGS), colalign=("left", *["right"] * (len(names) + len(HEADINGS))))
    note = f"* no other model has as good a {names[0]} in less time."
    quality = f"quality of {costs[0].scored:,} test texts"
    head = f"{costs[0].dataset}: {quality}, milliseconds of a text that is asked alone"
    return "\n\n".join([head, table, note, advice(costs)])


def advice(costs: Sequence[Cost]) -> str:
    """Which model to take if the median answer may take 5, 20 or 100 milliseconds."""
    name, said = costs[0].decides, list[tuple[str, Cost | None]]()
    most = "lowest" if costs[0].is_lower(name) else "highest"
    for limit in WITHIN:
        fast = (one for one in costs if one.alone_ms <= limit)
        best = max(fast, key=lambda one: (one.worth, -one.alone_ms), default=None)
        if said and said[-1][1] is best:
            said[-1] = f"{said[-1][0].replace(' or', ',')} or {limit}", best
        else:
            said.append((str(limit), best))
    return "\n".join(
        f"Within {limit} ms, {best.name} has the {most} {name}, {100 * best.metrics[name]:.2f}."
        if best
        else f"No model answers within {limit} ms."
        for limit, best in said
    )
