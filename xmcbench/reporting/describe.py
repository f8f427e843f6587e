"""Everything in a record, in sections for people, how to reproduce it, and the card of the model that it is of."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from xmcbench.reporting.notes import alike_texts, few_steps, idle_parts
from xmcbench.reporting.rows import budget_text, share_spent
from xmcbench.reporting.text_table import format_value, percent_interval, printable
from xmcbench.suite.tables import Kind
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import METRIC_VERSION, Record
from xmcbench.trial.trial import flatten

if TYPE_CHECKING:
    from xmcbench.evaluation.evaluator import Scores

SHOWN_AS: Mapping[str, Kind] = {
    "encoder_tokens": "number",
    "peak_bytes": "bytes",
    "model_bytes": "bytes",
    "peak_device_bytes": "bytes",
    "device_seconds": "seconds",
    "memory_bytes": "bytes",
}
NOTHING = ("null", "none", "false")
ASKED = (
    "epochs",
    "steps",
    "queries",
    "encoder_tokens",
    "flops",
    "device_seconds",
    "peak_bytes",
    "model_bytes",
    "predicted_queries",
)


Sections = dict[str, list[tuple[str, str]]]  # by title: names and values, as text


def describe(record: Record, store: Path | None = None) -> Sections:
    """The non-empty sections of a record. They hold all of the record except the log of a failure.

    With the `store` that holds the record, the last section has the command that runs its trial again.
    """
    trial, provenance = record.trial, dict(record.provenance)
    command = provenance.pop("command", None)
    return _sections(
        {
            "Trial": _trial(record),
            "Outcome": _outcome(record),
            "Metrics (per cent)": _metrics(record),
            "Settings": _flat(trial.config),
            "Spent": _flat(record.spent),
            "Curve": _curve(record),
            "How the settings were chosen": _flat(record.chosen),
            "Provenance": _flat(provenance),
            "Reproduce": _reproduce(record, command, store),
        }
    )


def _sections(rows: Mapping[str, Iterable[tuple[str, str]]]) -> Sections:
    """The non-empty sections, their texts printable."""
    sections = {title: [(printable(name), printable(text)) for name, text in own] for title, own in rows.items()}
    return {title: own for title, own in sections.items() if own}


def summary(record: Record) -> str:
    """What the record is of, in a line."""
    trial = record.trial
    first = next(iter(record.metrics), "")
    found = f"{first} {100 * record.metrics[first]:.2f}" if first else str(record.status)
    text = f"{found}, seed {trial.seed}, budget {budget_text(trial.budget.limits())}, suite {record.suite}"
    return printable(text + (f", {record.ended[:10]}" if record.ended else ""))


def for_people(record: Record) -> Sections:
    """What people ask of a record besides its metrics: settings, cost and origin, without what was left at nothing."""
    spent, provenance = record.spent, record.provenance
    shown = {name: _rounded(spent[name]) for name in ASKED if spent.get(name)}
    stages = {
        f"seconds to {stage}": seconds for stage, seconds in spent.get("stage_seconds", {}).items() if seconds >= 0.05
    }
    git, versions = provenance.get("git") or {}, provenance.get("versions") or {}
    origin = {
        "ended": record.ended,
        "code": f"{git.get('commit', '')[:12]}{' with uncommitted changes' if git.get('dirty') else ''}",
        "hardware": provenance.get("gpu") or provenance.get("cpu"),
        "cores": provenance.get("cores_usable"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "checkpoint chosen on": record.selection_split,
        "settings chosen by": "tuning" if record.chosen else "the suite",
    }
    return _sections(
        {
            "Problem": ((record.failure.type, record.failure.message),) if record.failure else (),
            "Settings": ((name, text) for name, text in _flat(record.trial.config) if text not in NOTHING),
            "Cost": (*_flat(shown), *((name, f"{seconds:,.1f}") for name, seconds in stages.items())),
            "Provenance": ((name, str(value)) for name, value in origin.items() if value),
        }
    )


def _rounded(value: object) -> object:
    """A number that is not whole with four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) and value < 1000 else value


def metric_rows(record: Record) -> list[tuple[str, str, str]]:
    """Name, value and interval of each metric, in per cent."""
    return [
        (name, f"{100 * value:.2f}", percent_interval(record.intervals.get(name, ())))
        for name, value in record.metrics.items()
    ]


def reproducing_suite(record: Record) -> str:
    """A suite file of this one trial. With the same versions and data it has the same key."""
    trial = record.trial
    suite: dict[str, Any] = {
        "name": record.suite,
        "datasets": [trial.dataset],
        "seeds": [trial.seed],
        "budget": trial.budget.limits(),
        "methods": {trial.label: {"method": trial.method}},
        "settings": trial.config,
        "metrics": list(record.metrics) or None,
        "selection": trial.selection.model_dump() if trial.selection else None,
        "track": trial.track,
    }
    stated = {key: value for key, value in suite.items() if value not in (None, {})}
    return yaml.safe_dump(stated, sort_keys=False, allow_unicode=True)


def _trial(record: Record) -> Iterable[tuple[str, str]]:
    trial = record.trial
    yield "key", record.key
    yield "label", trial.label
    yield "method", f"{trial.method} ({trial.distribution} {trial.version})"
    yield "versions", ", ".join(f"{part} {version}" for part, version in trial.versions.items()) or "not recorded"
    yield "dataset", f"{trial.dataset}, content {trial.dataset_hash}"
    yield "track", trial.track
    yield "seed", str(trial.seed)
    yield "budget", budget_text(trial.budget.limits())
    if trial.selection:
        held = trial.selection
        yield (
            "selection",
            f"{held.queries:,} queries held out, {held.metric}, {held.evaluations} times"
            + (f", training ends after {held.patience} without a rise" if held.patience else ""),
        )
    yield "suite", record.suite


def _outcome(record: Record) -> Iterable[tuple[str, str]]:
    yield "status", str(record.status)
    yield "started", record.started
    yield "ended", record.ended
    yield "checkpoint chosen on", record.selection_split
    if why := record.spent.get("ended"):
        yield "training ended early", f"{why}; {max(0.0, 1 - share_spent(record)):.1%} of the budget is unspent"
    if idle := idle_parts(record):
        yield "never ran", ", ".join(idle)
    if few := few_steps(record):
        yield "few steps", few
    if alike := alike_texts(record):
        yield "texts alike", alike
    yield "trainable parameters", f"{record.num_parameters:,}"
    yield "workers", str(record.workers)
    if record.teacher:
        yield "teacher", record.teacher + (" (simulated from annotations)" if record.simulated_teacher else "")
    if record.failure:
        where = f" while in {record.failure.stage}" if record.failure.stage else ""
        yield "failure", f"{record.failure.type}{where}: {record.failure.message}"
    if record.truth_hash:
        yield "truth", record.truth_hash
    for name, digest in record.digests.items():
        yield name, f"SHA-256 {digest}"


def _metrics(record: Record) -> Iterable[tuple[str, str]]:
    for name, value in record.metrics.items():
        interval = percent_interval(record.intervals.get(name, ()))
        yield name, f"{100 * value:.4f}" + (f"  95 %: {interval}" if interval else "")
    if record.metrics and record.metric_version != METRIC_VERSION:
        yield (
            "definitions",
            f"version {record.metric_version}, now {METRIC_VERSION}: `xmcbench rescore` recomputes the metrics",
        )


def _curve(record: Record) -> Iterable[tuple[str, str]]:
    for number, point in enumerate(record.curve, start=1):
        yield str(number), ", ".join(f"{name} {value:.6g}" for name, value in point.items())


def _reproduce(record: Record, command: Any, store: Path | None) -> Iterable[tuple[str, str]]:
    git = record.provenance.get("git") or {}
    if commit := git.get("commit"):
        yield "code", f"git checkout {commit}" + ("  (with uncommitted changes)" if git.get("dirty") else "")
    if isinstance(command, list) and command:
        words = [PurePath(str(command[0])).name, *map(str, command[1:])]
        yield "original command", shlex.join(words)
    if store is not None and not isinstance(record.trial.budget, UnknownBudget):
        show = f"xmcbench show {record.key} --store {shlex.quote(str(store))} --format suite > trial.yaml"
        yield "this trial alone", f"{show} && xmcbench run trial.yaml"


def _flat(tree: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Nested values by dotted name, as text."""
    for path, value in flatten(tree):
        name = path.rpartition(".")[2]
        if value in ({}, []):
            yield path, "none"
        elif isinstance(value, bool) or value is None or isinstance(value, dict | list):
            yield path, json.dumps(value, ensure_ascii=False)
        elif path.startswith("stage_seconds."):
            yield path, format_value(value, "seconds")
        elif name in SHOWN_AS:
            yield path, format_value(value, SHOWN_AS[name])
        elif isinstance(value, int):
            yield path, f"{value:,}"
        else:
            yield path, str(value)


SENTENCE_TRANSFORMERS = """\
Scores are inner products of a text's embedding with the labels' vectors:

```python
import json
from pathlib import Path

from huggingface_hub import hf_hub_download
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

repository = "{repository}"
labels = json.loads(Path(hf_hub_download(repository, "labels.json")).read_text(encoding="utf-8"))
index = load_file(hf_hub_download(repository, "vectors.safetensors"))["index"].float()
query = SentenceTransformer(repository, device="cpu").encode_query(["a text"], convert_to_tensor=True)
scores, ids = (query @ index.T).topk(5)
print([labels[label] for label in ids[0].tolist()])
```

With xmcbench and the dataset"""

XMCBENCH = """\
 `{dataset}`:

```sh
hf download {repository} --local-dir results/trials/{key}/model
cp results/trials/{key}/model/record.json results/trials/{key}/
xmcbench predict {key} --text "a text"
```"""


def model_card(record: Record, repository: str, sentence_transformers: bool) -> str:
    """The card in Markdown, with the hub's metadata at its top.

    `sentence_transformers` says that the library opens the files, and that `labels.json` is among them.
    """
    trial = record.trial
    tags = ["xmcbench", "extreme-multi-label-classification"]
    metadata = {
        "library_name": "sentence-transformers" if sentence_transformers else "xmcbench",
        "pipeline_tag": "sentence-similarity" if sentence_transformers else "text-classification",
        "tags": [*tags, "sentence-transformers"] if sentence_transformers else tags,
    }
    first = (
        f"The method {_code(trial.method)} ({_markdown(trial.distribution)} {_markdown(trial.version)}), trained on "
        f"the dataset {_code(trial.dataset)} with a budget of {budget_text(trial.budget.limits())} and seed "
        f"{trial.seed}."
    )
    sections = for_people(record)
    load = SENTENCE_TRANSFORMERS if sentence_transformers else "With xmcbench, the method's package and the dataset"
    parts = (
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {_markdown(trial.dataset)}/{_markdown(trial.label)}",
        first,
        "## Metrics\n\nOn the test queries, in per cent, with 95 % intervals over them.",
        _markdown_table(("metric", "value", "95 %"), metric_rows(record)),
        "## Loading",
        (load + XMCBENCH).format(repository=repository, dataset=trial.dataset, key=record.key),
        *(
            f"## {title}\n\n{_markdown_table((title.lower(), 'value'), sections[title])}"
            for title in ("Settings", "Cost", "Provenance")
            if title in sections
        ),
        f"## Training it again\n\nWith `xmcbench run suite.yaml`:\n\n```yaml\n{reproducing_suite(record).strip()}\n```",
    )
    return "\n\n".join(parts) + "\n"


def _markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(headings), *(tuple(map(_markdown, row)) for row in rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown(text: str) -> str:
    """The text without meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(text))


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '')}`"


def scores_table(scores: Scores) -> str:
    """A line per metric, in per cent, with its 95 % interval over test queries where it has one."""
    from tabulate import tabulate

    rows = [
        (metric, f"{100 * value:.4f}", percent_interval(scores.intervals.get(metric, ())))
        for metric, value in scores.metrics.items()
    ]
    return tabulate(
        rows, ("metric", "value", "95 % interval"), disable_numparse=True, colalign=("left", "right", "left")
    )
