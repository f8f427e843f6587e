"""Measured results at hand: the accepted ones and those of the user's store."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from xmcbench.errors import XMCBenchError, shown
from xmcbench.plugins.registry import calling
from xmcbench.reporting.published import Results, installed_results
from xmcbench.reporting.rows import Leaderboard, Reproduced, grouped
from xmcbench.reporting.words import enumeration, number

if TYPE_CHECKING:
    from xmcbench.data import Dataset
    from xmcbench.evaluation.analysis import Analysis
    from xmcbench.trial.predictions import Predictions
    from xmcbench.trial.record import Record
    from xmcbench.trial.store import Store


LONGEST = 160  # characters of a reason in a line for several datasets


@dataclass(frozen=True)
class Archive:
    """Records by key, the store in which each lies, and the results of others that are among them."""

    records: dict[str, Record]
    places: dict[str, Store]
    others: tuple[Results, ...] = ()

    def datasets(self, store: Path) -> set[str]:
        """The datasets of the records in `store`."""
        return {record.trial.dataset for key, record in self.records.items() if self.places[key].root == store}

    @property
    def accepted(self) -> set[str]:
        """The keys of trials of others, as accepted submissions, that the user's store does not have."""
        stores = {results.store for results in self.others}
        return {key for key, place in self.places.items() if place.root in stores}

    def reproduced(self) -> dict[str, Reproduced]:
        """By key: what came of training accepted trials again."""
        states: dict[str, Reproduced] = {}
        for results in self.others:
            here = [record for key, record in self.records.items() if self.places[key].root == results.store]
            if here:
                with calling("result", results.name):
                    states.update(results.reproduced(self.places[here[0].key], here))
        return states

    def of(self, datasets: Container[str]) -> Archive:
        """The records on `datasets`."""
        records = {key: record for key, record in self.records.items() if record.trial.dataset in datasets}
        return Archive(records, self.places, self.others)

    def resampled(self, key: str, metrics: Sequence[str]) -> Mapping[str, Any]:
        """The metrics of a trial on resamples of the test queries, float32 [B] each."""
        return self.places[key].resampled(self.records[key], metrics)

    def recomputable(self, data: Path) -> Callable[[Record], bool]:
        """Whether the predictions of a trial are here, and its dataset is known."""

        @cache
        def is_known(dataset: str) -> bool:
            from xmcbench.data import find_source  # numpy, which papers' results do not need

            with suppress(XMCBenchError):
                return find_source(dataset, data) is not None
            return False

        return lambda record: is_known(record.trial.dataset) and self.places[record.key].has_predictions(record.key)

    def predicted(
        self, keys: Container[str], data: Path, on_problem: Callable[[str], None]
    ) -> Iterator[tuple[Record, Dataset, Predictions]]:
        """The trials of `keys` with metrics, by dataset, whose dataset and predictions are at hand, with both.

        Problems go to `on_problem` at the end, a line for each kind: predictions that are not here, as of large
        submissions; datasets that cannot be loaded; predictions that do not fit.
        """
        from xmcbench.data import load
        from xmcbench.evaluation.evaluator import stored_predictions

        missing: dict[str, int] = {}
        unloaded: dict[str, list[str]] = {}  # datasets by the reason
        unfit = []
        wanted = (record for record in self.records.values() if record.key in keys and record.metrics)
        for name, records in grouped(wanted, lambda record: record.trial.dataset).items():
            here = [record for record in records if self.places[record.key].has_predictions(record.key)]
            if len(records) > len(here):
                missing[name] = len(records) - len(here)
            if not here:
                continue
            try:
                dataset = load(name, data)
            except XMCBenchError as problem:
                unloaded.setdefault(str(problem), []).append(name)
                continue
            for record in here:
                try:
                    yield record, dataset, stored_predictions(self.places[record.key], record, dataset)
                except XMCBenchError as problem:
                    unfit.append(f"{record.key} {record.trial.label}: {problem}")
        if missing:
            counts = enumeration([f"{name} {count:,}" for name, count in missing.items()])
            on_problem(f"the predictions of {number(sum(missing.values()), 'trial')} are not here ({counts})")
        if unloaded:
            on_problem(
                _grouped(
                    [
                        f"{enumeration(names)}: {shorten(reason, LONGEST, placeholder=' …')}"
                        for reason, names in unloaded.items()
                    ],
                    "dataset",
                )
            )
        if unfit:
            on_problem(_grouped(unfit, "trial"))

    def analyses(
        self,
        board: Leaderboard,
        data: Path,
        on_problem: Callable[[str], None],
        also: Callable[[Record, Dataset, Predictions], None] = lambda *_: None,
    ) -> dict[str, Analysis]:
        """The analyses of the trials shown whose predictions and dataset are at hand, by key; `also` sees each."""
        from xmcbench.evaluation.analysis import LabelBins, analyse, partitions

        by_key: dict[str, Analysis] = {}
        bins: dict[str, dict[str, LabelBins]] = {}
        for record, dataset, predictions in self.predicted(board.keys, data, on_problem):
            bins_of_dataset = bins.get(record.trial.dataset) or bins.setdefault(
                record.trial.dataset, partitions(dataset)
            )
            by_key[record.key] = analyse(predictions, dataset, bins_of_dataset)
            also(record, dataset, predictions)
        return by_key


def _grouped(problems: Sequence[str], noun: str) -> str:
    """Problems of one kind in a line: the first one whole, and how many others there are."""
    first, *others = problems
    return first + (f"; and {number(len(others), f'other {noun}')} with such a problem" if others else "")


def archive(store: Path) -> Archive:
    """The trials of others and of the user's store; of a trial in both, the user's record."""
    others = tuple(installed_results())
    folders = [place for place in (*map(_store_of, others), store) if place and place.exists()]
    both = Archive({}, {}, others)
    if folders:  # without records numpy need not be imported
        from xmcbench.trial.store import Store

        for place in map(Store, folders):
            with uncollected():
                records = {record.key: record for record in place.records()}
            both.records.update(records)
            both.places.update(dict.fromkeys(records, place))
    return both


def _store_of(results: Results) -> Path | None:
    with calling("result", results.name):
        place = results.store
        if not isinstance(place, Path | None):
            raise TypeError(f"store is {shown(place)}, expected a Path")
    return place


@contextmanager
def uncollected() -> Iterator[None]:
    """Run the block without garbage collection, which would walk a million live objects several times."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # so that the end of the process does not walk them either
        gc.enable()
