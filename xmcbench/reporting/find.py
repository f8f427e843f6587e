"""Finds the trial that a name means."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase

from xmcbench.errors import XMCBenchError, suggest
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import budget_text
from xmcbench.trial.alike import code_name, newest_code
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.store import Store

_log = logging.getLogger(__name__)


def find_trial(store: Store, name: str, seed: int | None = None) -> Record:
    """The finished trial with predictions that `name` and, if given, `seed` mean.

    A name is a key or the start of one, a label as in the suite or the leaderboard, or `dataset/label`. Raises
    XMCBenchError if no trial or several match; the message lists them.
    """
    return _only(find_trials(store, name, seed), name)


def find_seeds(store: Store, name: str) -> list[Record]:
    """The finished trials that `name` means, by ascending seed: one, or several that differ in their seed alone.

    Raises XMCBenchError as `find_trial` does.
    """
    matches = find_trials(store, name)
    if len({record.trial.but_seed for record in matches}) > 1:
        _only(matches, name)
    newest = newest_code(matches)
    if others := [record for record in matches if record.but_seed != newest[0].but_seed]:
        count = f"{len(others)} trial{'s' * (len(others) > 1)}"
        if any(record.code != newest[0].code for record in others):
            _log.warning("warning: %s: only %s is used, without %s of other code", name, code_name(newest[0]), count)
        else:
            _log.warning(
                "warning: %s: %s left out: their pretrained models, test targets or definitions of metrics are others",
                name, count
            )  # fmt: skip
    return newest


def find_trials(store: Store, name: str, seed: int | None = None) -> list[Record]:
    """All finished trials that `name` means, on whatever datasets. Raises XMCBenchError if there is none."""
    candidates = _candidates(store, name, seed)
    finished = [record for record in candidates if record.status in SCORED]
    if not finished:
        raise XMCBenchError(f"{described(candidates[0])} ended as {candidates[0].status}: it has no model")
    return finished


def find_record(store: Store, name: str, seed: int | None = None) -> Record:
    """The trial that `name` and `seed` mean, with any status. Both are as in `find_trial`."""
    return _only(_candidates(store, name, seed), name)


def find_scored(store: Store, patterns: list[str]) -> list[Record]:
    """The scored records whose key or label matches a pattern. Raises XMCBenchError if a pattern matches none."""
    scored = [record for record in store.records() if record.status in SCORED or unscored(store, record)]
    if not scored:
        raise XMCBenchError(f"{store.root}: no records with predictions; `xmcbench run SUITE` creates them")
    matched: dict[str, Record] = {}
    for pattern in patterns:
        # Labels of a sweep contain brackets, which a glob would read as a set of characters.
        matches = [r for r in scored if pattern in (r.key, r.trial.label)] or [
            r for r in scored if fnmatchcase(r.key, pattern) or fnmatchcase(r.trial.label, pattern)
        ]
        if not matches:
            near = suggest(pattern, (record.trial.label for record in scored))
            raise XMCBenchError(f"{store.root}: no scored record has a key or label that matches {pattern!r}{near}")
        matched |= {record.key: record for record in matches}
    return list(matched.values())


def unscored(store: Store, record: Record) -> bool:
    """Whether a trial has predictions and failed only when they were scored."""
    failed = record.failure is not None and record.failure.stage == "score"
    return failed and store.has_predictions(record.key)


def described(record: Record) -> str:
    """One line about a trial, for messages."""
    trial = record.trial
    return f"{record.key} {trial.dataset}/{trial.label}, seed {trial.seed}, {budget_text(trial.budget.limits())}"


def _candidates(store: Store, name: str, seed: int | None) -> list[Record]:
    """The trials that `name` means, of one seed or of all. Raises XMCBenchError if there is none."""
    records = {record.key: record for record in store.records()}
    if not records:
        raise XMCBenchError(f"{store.root}: no records yet; `xmcbench run SUITE` creates them")
    matches = [records[name]] if name in records else _named(records, name)
    if not matches:
        known = {f"{record.trial.dataset}/{record.trial.label}" for record in records.values()}
        raise XMCBenchError(f"{store.root}: no trial is called {name!r}{suggest(name, known)}")
    if seed is not None and not any(record.trial.seed == seed for record in matches):
        seeds = ", ".join(str(each) for each in sorted({record.trial.seed for record in matches}))
        raise XMCBenchError(f"--seed {seed}: found trials with the seeds {seeds}")
    return [record for record in matches if seed in (None, record.trial.seed)]


def _only(matches: list[Record], name: str) -> Record:
    if len(matches) > 1:
        listed = "\n".join(f"  {described(record)}" for record in matches)
        raise XMCBenchError(f"{name!r} matches {len(matches)} trials, expected the key of one:\n{listed}")
    return matches[0]


def _named(records: dict[str, Record], name: str) -> list[Record]:
    """The trials whose key begins with `name`, or whose label in the suite it is, else those of rows of that label.

    A leaderboard is made only for the latter: its labels tell trials with the same suite label apart.
    """

    def is_called(record: Record, label: str) -> bool:
        return name in (label, f"{record.trial.dataset}/{label}")

    matches = [
        record
        for key, record in records.items()
        if (name and key.startswith(name)) or is_called(record, record.trial.label)
    ]
    if matches:
        return matches
    rows = [row for group in leaderboard(records.values()).groups for row in group.rows]
    keys = {key for row in rows for key in row.keys if is_called(records[key], row.label)}
    return [record for key, record in records.items() if key in keys]
