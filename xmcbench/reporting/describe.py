"""Everything in a record, in sections for people, how to reproduce it, and the card of the model that it is of."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from xmcbench.reporting.make_rows import CONFIG_FACTS, FACTS, encoder_text
from xmcbench.reporting.ranked_groups import USUAL_METRICS
from xmcbench.reporting.rows import budget_text, share_spent
from xmcbench.reporting.text_table import (
    format_value,
    percent_interval,
    printable,
    short_number,
)
from xmcbench.reporting.words import (
    alike_texts,
    chosen_on,
    end_of_training,
    enumeration,
    few_steps,
    idle_parts,
    number,
    unanswered,
)
from xmcbench.suite.tables import Kind, ranking_metric
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import METRIC_VERSION, Record
from xmcbench.trial.trial import flatten

SHOWN_AS: Mapping[str, Kind] = {
    "encoder_tokens": "number",
    "flops": "number",
    "peak_bytes": "bytes",
    "model_bytes": "bytes",
    "peak_device_bytes": "bytes",
    "device_seconds": "seconds",
    "memory_bytes": "bytes",
}
LITTLE = 0.001  # share of a budget whose rest is not worth a word
NOTHING = ("null", "none", "false")
ASKED = {
    "epochs": "epochs",
    "steps": "steps",
    "queries": "training queries",
    "encoder_tokens": "encoder tokens",
    "flops": "operations",
    "device_seconds": "device seconds",
    "peak_bytes": "peak memory",
    "model_bytes": "model on disk",
    "predicted_queries": "predicted queries",
}

Sections = dict[str, list[tuple[str, str]]]  # by title: names and values, as text


def describe(record: Record, store: Path | None = None) -> Sections:
    """The non-empty sections of a record. They hold all of the record except the log of a failure.

    With the `store` that holds the record, the last section has the command that runs its trial again.
    """
    points = [", ".join(f"{name} {value:.6g}" for name, value in point.items()) for point in record.curve]
    metrics = metric_rows(record.metrics, record.intervals, digits=4)
    known = {name: f"{value}  95 %: {interval}" if interval else value for name, value, interval in metrics}
    if record.metrics and record.metric_version != METRIC_VERSION:
        known["definitions"] = f"version {record.metric_version}, now {METRIC_VERSION}: `xmcbench rescore` recomputes"
    return _sections(
        {
            "Trial": _known(_trial(record)),
            "Outcome": _known(_outcome(record)),
            "Metrics (per cent)": known,
            "Settings": record.trial.config,
            "Spent": record.counted,
            "Curve": {str(at): text for at, text in enumerate(points, start=1)},
            "How the settings were chosen": _chosen(record),
            "Provenance": {name: value for name, value in record.provenance.items() if name != "command"},
            "Reproduce": _known(_reproduce(record, store)),
        }
    )


def brief(record: Record, store: Path | None = None) -> Sections:
    """What people ask of a record first; `describe` has all of it. The last line says what it leaves out."""
    outcome, trial, config = _outcome(record), _trial(record), record.trial.config
    told = ("failure", "training ended early", "never ran", "few steps", "texts alike", "queries cut", "without answer")
    main = {name: config[name] for name in CONFIG_FACTS if isinstance(config.get(name), FACTS)}
    encoder = config.get("encoder")
    title = f"{record.trial.dataset}/{record.trial.label}, seed {record.trial.seed}: {record.status}"
    usual = {name: value for name, value in record.metrics.items() if name in USUAL_METRICS[record.trial.track]}
    metrics = usual or record.metrics
    left_out = {
        "metric": len(record.metrics) - len(metrics),
        "setting": len(list(flatten(config))),
        "digest": len(record.digests),
        "point of the curve": len(record.curve),
        "count": len(list(flatten(record.counted))),
    }
    said = [_several(count, noun) for noun, count in left_out.items() if count]
    return _sections(
        {
            title: {name: f"{value}  95 %: {interval}" if interval else value
                    for name, value, interval in metric_rows(metrics, record.intervals)},
            "What happened": _known({name: outcome[name] for name in told}),
            "Trial": _known(
                {name: trial[name] for name in ("key", "method", "track", "budget", "suite")}
                | {"encoder": encoder_text(encoder) if isinstance(encoder, dict) else encoder}
                | main
                | {name: outcome[name] for name in ("checkpoint chosen on", "ended", "teacher")}
            ),
            "Cost": _costs(record),
            "Reproduce": _known({"this trial alone": _reproduce(record, store)["this trial alone"]}),
            "More": {"--all": f"{enumeration(said)}; provenance"},
        }
    )  # fmt: skip


def _several(count: int, noun: str) -> str:
    head, of, tail = noun.partition(" of ")
    return number(count, head) + of + tail


def _costs(record: Record) -> dict[str, Any]:
    """What it spent that people ask for, without counts that nobody knows."""
    counted = record.counted
    costs = {
        called: short_number(counted[name], "{:.4g}") if name == "flops" else _plain(name, _rounded(counted[name]))
        for name, called in ASKED.items()
        if counted.get(name)
    }
    stages = {name: seconds for name, seconds in counted.get("stage_seconds", {}).items() if seconds >= 0.05}
    told = ", ".join(f"{stage} {seconds:,.1f}" for stage, seconds in stages.items())
    return costs | ({"wall-clock seconds": told} if told else {})


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "") and value is not False}


def _sections(facts: Mapping[str, Mapping[str, Any]]) -> Sections:
    """The non-empty sections as printable texts, nested facts by dotted name."""
    texts = {
        title: [(printable(name), printable(text)) for name, text in _flat(section)] for title, section in facts.items()
    }
    return {printable(title): lines for title, lines in texts.items() if lines}


def summary(record: Record) -> str:
    """What the record is of, in a line."""
    trial = record.trial
    first = ranking_metric(record.metrics)
    outcome = f"{first} {100 * record.metrics[first]:.2f}" if first else str(record.status)
    text = f"{outcome}, seed {trial.seed}, budget {budget_text(trial.budget.limits())}, suite {record.suite}"
    return printable(text + (f", {record.ended[:10]}" if record.ended else ""))


def for_people(record: Record) -> Sections:
    """What people ask of a record besides its metrics: settings, cost and origin, without what was left at nothing."""
    provenance = record.provenance
    git, versions = provenance.get("git") or {}, provenance.get("versions") or {}
    origin = {
        "ended": record.ended,
        "code": f"{git.get('commit', '')[:12]}{' with uncommitted changes' if git.get('dirty') else ''}",
        "hardware": provenance.get("gpu") or provenance.get("cpu"),
        "cores": provenance.get("cores_usable"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "checkpoint chosen on": chosen_on(record.selection_split),
        "settings chosen by": "tuning" if record.chosen else "the suite",
    }
    return _sections(
        {
            "Problem": {record.failure.type: record.failure.message} if record.failure else {},
            "Settings": {name: text for name, text in _flat(record.trial.config) if text not in NOTHING},
            "Cost": _costs(record),
            "Provenance": {name: str(value) for name, value in origin.items() if value},
        }
    )


def _rounded(value: object) -> object:
    """A number that is not whole, or those in a tree, with four digits."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) and value < 1000 else value


def metric_rows(
    metrics: Mapping[str, float], intervals: Mapping[str, tuple[float, float]], digits: int = 2
) -> list[tuple[str, str, str]]:
    """Name, value and interval of each metric, in per cent; the interval is empty where there is none."""
    return [
        (name, f"{100 * value:.{digits}f}", percent_interval(intervals.get(name, ())))
        for name, value in metrics.items()
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


def _refit(record: Record) -> str:
    """That the model was trained anew on all training queries, for how long, and what the first training took."""
    if record.trial.selection is None or not record.trial.selection.refit:
        return ""
    share, first = record.spent.get("chosen_at"), record.spent.get("choice", {})
    length = "" if share is None else f" with {share:.0%} of the budget"
    took = f", after a training of {first['device_seconds']:.0f} device seconds" if "device_seconds" in first else ""
    return f"; then trained anew on all training queries{length}{took}"


def _trial(record: Record) -> dict[str, Any]:
    trial, held = record.trial, record.trial.selection
    patience = f", training ends after {held.patience} without a rise" if held and held.patience else ""
    return {
        "key": record.key,
        "label": trial.label,
        "method": f"{trial.method} ({trial.distribution} {trial.version})",
        "versions": ", ".join(f"{part} {version}" for part, version in trial.versions.items()) or "not recorded",
        "dataset": f"{trial.dataset}, content {trial.dataset_hash}",
        "track": trial.track,
        "seed": trial.seed,
        "budget": budget_text(trial.budget.limits()),
        "selection": held
        and f"{held.queries:,} queries held out, {held.metric}, {held.evaluations} times{patience}{_refit(record)}",
        "suite": record.suite,
    }


def _chosen(record: Record) -> dict[str, Any]:
    chosen = record.chosen
    return chosen | ({"on": chosen_on(chosen["on"])} if "on" in chosen else {})


def _outcome(record: Record) -> dict[str, Any]:
    why, failure, unspent = end_of_training(record), record.failure, 1 - share_spent(record)
    cut, limit = record.spent.get("cut_queries"), record.trial.config.get("max_query_length") or "the card's"
    simulated = " (simulated from annotations)" if record.simulated_teacher else ""
    where = f" while in {failure.stage}" if failure and failure.stage else ""
    return {
        "status": str(record.status),
        "started": record.started,
        "ended": record.ended,
        "checkpoint chosen on": chosen_on(record.selection_split),
        "training ended early": why and unspent > LITTLE and f"{why}; {unspent:.1%} of the budget is unspent",
        "never ran": ", ".join(idle_parts(record)),
        "few steps": few_steps(record),
        "texts alike": alike_texts(record),
        "queries cut": cut and f"{cut:.0%}, at {limit} tokens",
        "trainable parameters": record.parameters,
        "workers": record.workers,
        "teacher": record.teacher and record.teacher + simulated,
        "without answer": unanswered(record),
        "failure": failure and f"{failure.type}{where}: {failure.message}",
        "truth": record.truth_hash,
        **{name: f"SHA-256 {digest}" for name, digest in record.digests.items()},
    }


def _reproduce(record: Record, store: Path | None) -> dict[str, Any]:
    git, command = record.provenance.get("git") or {}, record.provenance.get("command")
    commit, dirty = git.get("commit"), "  (with uncommitted changes)" if git.get("dirty") else ""
    alone = store is not None and not isinstance(record.trial.budget, UnknownBudget)
    show = f"xmcbench show {record.key} --store {shlex.quote(str(store))} --format suite > trial.yaml"
    return {
        "code": commit and f"git checkout {commit}{dirty}",
        "original command": command and shlex.join([PurePath(command[0]).name, *command[1:]]),
        "this trial alone": f"{show} && xmcbench run trial.yaml" if alone else "",
    }


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Nested values by dotted name, as text."""
    for path, value in flatten(tree):
        name = path.rpartition(".")[2]
        if value in ({}, []):
            yield path, "none"
        elif isinstance(value, bool) or value is None or isinstance(value, dict | list):
            yield path, json.dumps(_rounded(value), ensure_ascii=False)
        else:
            yield path, _plain("device_seconds" if path.startswith("stage_seconds.") else name, value)


def _plain(name: str, value: Any) -> str:
    """A count or setting called `name` as text."""
    if name in SHOWN_AS:
        return format_value(value, SHOWN_AS[name])
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
