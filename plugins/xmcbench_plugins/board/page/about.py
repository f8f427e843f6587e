"""What the page of a record says before its settings: dataset, method, paper, code, and example predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from xmcbench.data import Dataset, find_source
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.reporting.curated import title_of
from xmcbench.reporting.published import PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.reporting.text_table import printable
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record

EXAMPLES, LABELS = 5, 5  # test texts of a record, labels of a text
LONGEST = 240  # characters of a text or label
OPEN = (
    "Apache-2.0",
    "CC BY",
    "CC0",
    "MIT",
    "ODC-BY",
    "public domain",
)  # how licences begin that let texts be shown
NEVER = "not yet"


@dataclass(frozen=True)
class Fact:
    """A name and its value, with an address where there is one."""

    name: str
    text: str
    url: str = ""


@dataclass(frozen=True)
class Example:
    """A test text, its true labels, and the labels predicted first, each with whether it is true."""

    text: str
    true: tuple[str, ...]
    predicted: tuple[tuple[str, bool], ...]


def facts(record: Record, row: Row | None, published: Sequence[PublishedRow]) -> list[Fact]:
    """The facts about a record that is a seed of `row`; empty ones are left out."""
    trial = record.trial
    dataset = title_of(trial.dataset)
    found = [
        Fact("dataset", f"{dataset} ({trial.dataset})" if dataset else trial.dataset, dataset_address(trial.dataset)),
        *_of_source(trial.dataset),
        Fact("method", f"{row.called} ({trial.label})" if row and row.called != trial.label else trial.label),
        _paper(trial.method, trial.distribution, published),
        Fact("date", record.ended[:10]),
        Fact("trained again", str(row.reproduced) if row and row.reproduced else NEVER if row and row.accepted else ""),
        *_code(record),
    ]
    return [Fact(fact.name, printable(fact.text), fact.url) for fact in found if fact.text]


def dataset_address(name: str) -> str:
    """The address of a dataset's source, where its card names one."""
    words = _draft(name).get("source", "").replace(",", " ").replace("(", " ").replace(")", " ").split()
    return next((word for word in words if word.startswith("https://")), "")


def _draft(name: str) -> Mapping[str, str]:
    try:
        source = find_source(name.partition("+")[0])
    except XMCBenchError:
        source = None
    return {"source": source.draft.source, "licence": source.draft.licence} if source else {}


def _of_source(name: str) -> list[Fact]:
    own = _draft(name)
    return [Fact("source of the data", own.get("source", "")), Fact("licence of the data", own.get("licence", ""))]


def _paper(method: str, distribution: str, published: Sequence[PublishedRow]) -> Fact:
    """What the method cites, with the address of the paper if it has published rows."""
    try:
        citation = registry().method(method, distribution).thing.info.citation
    except XMCBenchError:
        citation = ""
    url = next((one.url for one in published if _letters(_title(one.citation)) in _letters(citation)), "")
    return Fact("paper", citation, url)


def _title(citation: str) -> str:
    """The longest sentence of a citation."""
    return max(citation.split(". "), key=len)


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def _code(record: Record) -> list[Fact]:
    """The distribution that trained it, with its licence, and the commit."""
    from importlib.metadata import PackageNotFoundError, metadata

    name = record.trial.distribution
    try:
        about = metadata(name).json
        licence = str(about.get("license_expression") or about.get("license") or "")
    except PackageNotFoundError:
        licence = ""
    git = record.provenance.get("git") or {}
    commit = f", commit {git['commit'][:12]}" if git.get("commit") else ""
    version = (record.provenance.get("versions") or {}).get(name, "")
    return [Fact("code", " ".join(filter(None, [name, version])) + commit), Fact("licence of the code", licence)]


def examples(dataset: Dataset, predictions: Predictions) -> tuple[Example, ...]:
    """The first test texts that have labels, if the dataset's licence lets its texts be shown."""
    if not dataset.card.licence.startswith(OPEN):
        return ()
    targets = dataset.test.targets
    found = []
    for query in range(targets.shape[0]):
        true = targets[[query]].indices.tolist()
        if not true:
            continue
        best = [label for label in predictions.indices[query, :LABELS].tolist() if label >= 0]
        found.append(
            Example(
                _line(dataset.test.texts[query]),
                tuple(_line(dataset.label_texts[label]) for label in true),
                tuple((_line(dataset.label_texts[label]), label in true) for label in best),
            )
        )
        if len(found) == EXAMPLES:
            break
    return tuple(found)


def _line(text: str) -> str:
    return printable(shorten(text, LONGEST, placeholder=" …"))
