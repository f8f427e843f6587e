"""Curated files for the page and the figures: names of methods, facts about datasets, findings.

Three files of `leaderboard/` hold them: people write `methods.yaml` and `datasets.yaml`, `benchmarks/findings.py` makes
`findings.yaml`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from xmcbench.files.yaml_lines import Problems, YamlDocument, read, validate
from xmcbench.reporting.text_table import folded
from xmcbench.trial.record_fields import Frozen

CURATED = Path(__file__).parent / "leaderboard"
OTHER = "other"  # the last family, of methods that the file does not list
M = TypeVar("M", bound=BaseModel)


class Written(Frozen):
    """A file that people write, or a part of it; unknown keys are errors."""


class NamedMethod(Written):
    """A method by its name in papers."""

    name: str
    family: str = OTHER
    plugin: str = ""  # rows of this plugin are variants of the method if no method lists their label
    of: str = ""  # the plugin that has these labels, where the method has no plugin of its own
    labels: tuple[str, ...] = ()  # of rows with the recommended settings, the best known first
    adds: tuple[tuple[str, str], ...] = ()  # labels, and what each adds to the name
    paper: str = ""  # the address of the paper that introduces it, where the curators know it
    code: str = ""  # the address of its authors' code, and
    licence: str = ""  # the licence of that code

    def place(self, label: str) -> int | None:
        """The place of a row's label among those with the recommended settings; None for a variant."""
        known, first = (*self.labels, self.plugin), stem(label)
        return known.index(first) if first in known else None

    def call(self, label: str) -> str:
        """The name in figures of the row with this label: what it adds to the method's name is in brackets.

        >>> NamedMethod(name="DEXML", plugin="dexml").call("dexml-hard[batch_size=64]")
        'DEXML (hard, batch_size=64)'
        """
        first = label.partition("[")[0]
        usual = folded(first) == folded(self.name) or self.place(first) == 0 or first == self.plugin
        rest = dict(self.adds).get(first, "" if usual else first.removeprefix(f"{self.plugin}-"))
        added = ", ".join(part for part in (rest, *swept(label)) if part)
        return f"{self.name} ({added})" if added else self.name


class Methods(Written):
    """The methods whose names and families are known."""

    families: tuple[str, ...]
    methods: tuple[NamedMethod, ...]

    def of(self, label: str, plugin: str = "") -> NamedMethod:
        """The method of a row: by its label, else by its name in papers, else by its plugin, else one of its own."""
        first = stem(label)
        return (
            next((one for one in self.methods if first in one.labels), None)
            or next((one for one in self.methods if folded(one.name) == folded(first)), None)
            or next((one for one in self.methods if plugin and one.plugin == plugin), None)
            or NamedMethod(name=first, labels=(first,))
        )

    def colour(self, method: NamedMethod) -> int:
        """The number of the method's family, which is that of its colour."""
        return self.families.index(method.family)


class DatasetFacts(Written):
    """The facts on a dataset's card besides its sizes, licence and source."""

    title: str = ""  # its name for people
    texts: str = ""
    num_train: int | None = None  # of accepted results, where the size of the data follows the machine
    num_test: int | None = None
    num_labels: int | None = None
    labels_per_text: float | None = None
    made: bool = False
    leakage: str = ""


class Findings(Written):
    """The findings: sentences, and the dataset and suite of the first one."""

    dataset: str
    suite: str
    sentences: tuple[str, ...] = ()


class _Datasets(Written):
    facts: dict[str, DatasetFacts]


def stem(label: str) -> str:
    """A label without the values of a sweep.

    >>> stem("dexml-hard[batch_size=64]")
    'dexml-hard'
    """
    return label.partition("[")[0].strip()


def swept(label: str) -> list[str]:
    """The values of a sweep that a label has, without that of a budget.

    >>> swept("dexml-hard[batch_size=64,budget=small]")
    ['batch_size=64']
    """
    values = label.partition("[")[2].rstrip("]").split(",")
    return [value for value in values if value and not value.startswith("budget=")]


@cache
def methods() -> Methods:
    """Raises `XMCBenchError` with file, line and key of each mistake, as do the other functions."""
    return read_model(Methods, CURATED / "methods.yaml")


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


def read_model(model: type[M], path: Path, exact: bool = False) -> M:
    """The content of a YAML file as a `model`; `exact` keeps decimal numbers as they are written.

    Raises `XMCBenchError` with file, line and key of each mistake.
    """
    return read_checked(model, path, exact)[0]


def read_checked(model: type[M], path: Path, exact: bool = False) -> tuple[M, YamlDocument, Problems]:
    """As `read_model`, with the document and what takes note of further problems."""
    document = read(path, exact)
    problems = Problems(document)
    found = validate(model, document.data, (), {}, problems)
    problems.check()
    assert found is not None
    return found, document, problems
