"""Where a row comes from, and what the page of a record says first: dataset, method, paper, code, examples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import shorten

from xmcbench.data import Dataset, find_source
from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.reporting.names import NamedMethod, named
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.rows import Row
from xmcbench.reporting.text_table import printable
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record
from xmcbench_plugins.board.curated import title_of

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
CODE_URLS = ("repository", "source", "source code", "homepage")  # of a distribution's metadata


@dataclass(frozen=True)
class Fact:
    """A name and its value, with an address where there is one."""

    name: str
    text: str
    url: str = ""


@dataclass(frozen=True)
class Origin:
    """The paper of a row's method, the code that made the row, and the licence of that code; empty where not known."""

    paper: str = ""
    paper_url: str = ""
    code: str = ""
    code_url: str = ""
    licence: str = ""


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
    own = measured_origin(record, published)
    found = [
        Fact("dataset", f"{dataset} ({trial.dataset})" if dataset else trial.dataset, dataset_address(trial.dataset)),
        *_of_source(trial.dataset),
        Fact("method", f"{row.called} ({trial.label})" if row and row.called != trial.label else trial.label),
        Fact("paper", own.paper, own.paper_url),
        Fact("date", record.ended[:10]),
        Fact("trained again", str(row.reproduced) if row and row.reproduced else NEVER if row and row.accepted else ""),
        Fact("code", own.code, own.code_url),
        Fact("licence of the code", own.licence),
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


def measured_origin(record: Record, published: Sequence[PublishedRow]) -> Origin:
    """What a trial's method cites, and the distribution that trained it, with version and commit.

    The address of the paper is that of the method, or of the `published` row of the paper that the method cites.
    """
    trial = record.trial
    try:
        citation = registry().method(trial.method, trial.distribution).thing.info.citation
    except XMCBenchError:
        citation = ""
    cited = next((one.url for one in published if _letters(_title(one.citation)) in _letters(citation)), "")
    url = named(trial.label, trial.method).paper or cited
    git, version = record.provenance.get("git") or {}, (record.provenance.get("versions") or {}).get(trial.distribution)
    code = " ".join(filter(None, [trial.distribution, version]))
    commit = f", commit {git['commit'][:12]}" if git.get("commit") else ""
    return Origin(citation or url, url, code + commit, *_distribution(trial.distribution))


def published_origin(method: NamedMethod) -> Origin:
    """The paper that introduces a method, and its authors' code."""
    return Origin(method.paper, method.paper, method.code, method.code, method.licence)


def year_of(citation: str) -> str:
    """The year of a citation, which is the last one that it names; empty where it names none.

    >>> year_of("J. Zhang et al. Zero-Shot Learning Over Large Output Spaces. arXiv:2406.09288, 2024.")
    '2024'
    """
    return next(reversed(re.findall(r"\b(?:19|20)\d\d\b", citation)), "")


def _title(citation: str) -> str:
    """The longest sentence of a citation."""
    return max(citation.split(". "), key=len)


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


@cache
def _distribution(name: str) -> tuple[str, str]:
    """The address of an installed distribution's code, and its licence; empty where it says none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        about = metadata(name).json
    except PackageNotFoundError:
        return "", ""
    urls = dict(str(entry).split(", ", 1) for entry in about.get("project_url", []))
    known = (url for label, url in urls.items() if label.casefold() in CODE_URLS)
    return next(known, ""), str(about.get("license_expression") or about.get("license") or "").strip()


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
