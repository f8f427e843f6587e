"""Finds the trial that a name on the command line means. Commands import it when they run."""

from __future__ import annotations

from collections.abc import Iterable

from xmcbench.errors import XMCBenchError, suggest
from xmcbench.reporting import budget_text, leaderboard
from xmcbench.trial.record import SCORED, Record
from xmcbench.trial.store import Store


def find_trial(store: Store, name: str, seed: int | None = None) -> Record:
    """The finished trial with predictions that `name` and, if given, `seed` mean.

    A name is a key or the start of one, a label as in the suite or the leaderboard, or `dataset/label`. Raises
    XMCBenchError if no trial or several match; the message lists them.
    """
    records = _records(store)
    candidates = _with_seed(_candidates(records, name), seed)
    matches = _scored(candidates)
    if not matches and candidates:
        raise XMCBenchError(f"{described(candidates[0])} ended as {candidates[0].status}: it has no model")
    return _only(matches, _scored(records.values()), name, store)


def find_seeds(store: Store, name: str) -> list[Record]:
    """The finished trials that `name` means, by ascending seed: one, or several that differ in their seed alone.

    Raises XMCBenchError as `find_trial` does.
    """
    matches = _scored(_candidates(_records(store), name))
    if len({record.trial.but_seed for record in matches}) != 1:
        return [find_trial(store, name)]
    return sorted(matches, key=lambda record: record.trial.seed)


def find_trials(store: Store, name: str) -> list[Record]:
    """All finished trials that `name` means, on whatever datasets. Raises XMCBenchError if there is none."""
    matches = _scored(_candidates(_records(store), name))
    return matches or [find_trial(store, name)]


def find_record(store: Store, name: str, seed: int | None = None) -> Record:
    """The trial that `name` and `seed` mean, with any status. Both are as in `find_trial`."""
    records = _records(store)
    return _only(_with_seed(_candidates(records, name), seed), records.values(), name, store)


def described(record: Record) -> str:
    """One line about a trial, for messages."""
    trial = record.trial
    return f"{record.key} {trial.dataset}/{trial.label}, seed {trial.seed}, {budget_text(trial.budget.limits())}"


def _records(store: Store) -> dict[str, Record]:
    records = {record.key: record for record in store.records()}
    if not records:
        raise XMCBenchError(f"{store.root}: no records yet; `xmcbench run SUITE` creates them")
    return records


def _scored(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.status in SCORED]


def _candidates(records: dict[str, Record], name: str) -> list[Record]:
    if name in records:
        return [records[name]]
    names = _names(records)
    return [record for key, record in records.items() if name in names[key] or (name and key.startswith(name))]


def _with_seed(candidates: list[Record], seed: int | None) -> list[Record]:
    """The candidates of one seed, or all without one. Raises XMCBenchError if no candidate has it."""
    matches = [record for record in candidates if seed in (None, record.trial.seed)]
    if candidates and not matches:
        seeds = ", ".join(str(each) for each in sorted({record.trial.seed for record in candidates}))
        raise XMCBenchError(f"--seed {seed}: found trials with the seeds {seeds}")
    return matches


def _only(matches: list[Record], others: Iterable[Record], name: str, store: Store) -> Record:
    """The only record in `matches`. Raises XMCBenchError if there is not exactly one; `others` supply near names."""
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = "\n".join(f"  {described(record)}" for record in matches)
        raise XMCBenchError(f"{name!r} matches {len(matches)} trials, a key matches one:\n{listed}")
    known = {f"{record.trial.dataset}/{record.trial.label}" for record in others}
    raise XMCBenchError(f"{store.root}: no trial is called {name!r}{suggest(name, known)}")


def _names(records: dict[str, Record]) -> dict[str, set[str]]:
    """The names of each trial, other than its key."""
    names = {key: {record.trial.label} for key, record in records.items()}
    for group in leaderboard(records.values()).groups:
        for row in group.rows:  # labels that distinguish trials with the same suite label
            for key in row.keys:
                names[key].add(row.label)
    return {key: own | {f"{records[key].trial.dataset}/{name}" for name in own} for key, own in names.items()}
