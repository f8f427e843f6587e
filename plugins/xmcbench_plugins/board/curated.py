"""Curated files: names of methods, facts about datasets, and the findings that the page shows.

Three files of `leaderboard/` hold them: people write `methods.yaml` and `datasets.yaml`, `benchmarks/findings.py` makes
`findings.yaml`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xmcbench.files.yaml_lines import read_model
from xmcbench.reporting.names import NamedMethod
from xmcbench.trial.record_fields import Frozen

CURATED = Path(__file__).parent / "leaderboard"


class _Methods(Frozen):
    methods: tuple[NamedMethod, ...]


class DatasetFacts(Frozen):
    """The facts on a dataset's card besides its sizes, licence and source."""

    title: str = ""  # its name for people
    texts: str = ""
    num_train: int | None = None  # of accepted results, where the size of the data follows the machine
    num_test: int | None = None
    num_labels: int | None = None
    labels_per_text: float | None = None
    made: bool = False
    leakage: str = ""


class Findings(Frozen):
    """The findings: sentences, and the dataset and suite of the first one."""

    dataset: str
    suite: str
    sentences: tuple[str, ...] = ()


class _Datasets(Frozen):
    facts: dict[str, DatasetFacts]


@cache
def methods() -> tuple[NamedMethod, ...]:
    """Raises `XMCBenchError` with file, line and key of each mistake, as do the other functions."""
    return read_model(_Methods, CURATED / "methods.yaml").methods


def dataset_facts(name: str) -> DatasetFacts:
    """The facts of a dataset, or of the family of made datasets that it belongs to; empty where none are known."""
    known = _datasets()
    family = next((facts for first, facts in known.items() if facts.made and name.startswith(f"{first}-")), None)
    return known.get(name) or family or DatasetFacts()


def title_of(name: str) -> str:
    """A dataset's name for people, with what a track made of it; empty where it has none.

    >>> title_of("lf-tibkat-15k"), title_of("lf-tibkat-15k+few-shot-4"), title_of("nowhere")
    ('Small library set', 'Small library set, few-shot-4', '')
    """
    first, _, track = name.partition("+")
    title = dataset_facts(first).title
    return f"{title}, {track}" if title and track else title


@cache
def _datasets() -> dict[str, DatasetFacts]:
    return read_model(_Datasets, CURATED / "datasets.yaml").facts


@cache
def findings() -> Findings:
    """The findings that the page shows."""
    return read_model(Findings, CURATED / "findings.yaml")
