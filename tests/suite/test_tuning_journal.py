"""A tuning that was killed: its journal lists the samples, and the next run goes on with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from xmcbench.errors import XMCBenchError
from xmcbench.runs.tuning import (
    JOURNAL_BYTES,
    Journal,
    Sample,
    Search,
    choose,
    journal_path,
    read_journal,
    run_in_order,
)
from xmcbench.suite.tuning import Tune
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

from .test_tuning import SPACE, Hill, base

SETTINGS: dict[str, Any] = {"space": {"a": SPACE}, "num_samples": 9, "scheduler": "halving", "searcher": "optuna"}


def tuned(journal: Path, carry: Any) -> Search:
    return choose(base(), Tune.model_validate(SETTINGS), "a", dict, partial(run_in_order, carry), journal)


class Killed(Hill):
    """Trials of which only so many end."""

    def __init__(self, ends: int) -> None:
        super().__init__()
        self.ends = ends

    def __call__(self, trials: Sequence[Trial]) -> list[Record]:
        if len(self.trials) == self.ends:
            raise KeyboardInterrupt
        return super().__call__(trials)


@pytest.mark.parametrize("ends", [0, 1, 5, 11])
def test_a_tuning_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path, ends: int) -> None:
    unbroken, again = Hill(), Hill()
    wanted = tuned(tmp_path / "unbroken.json", unbroken)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "killed.json", Killed(ends))
    assert not read_journal(tmp_path / "killed.json").ended(9)
    found = tuned(tmp_path / "killed.json", again)
    assert found.as_dict() == wanted.as_dict()
    assert [trial.key for trial in again.trials] == [trial.key for trial in unbroken.trials]
    assert (tmp_path / "killed.json").read_bytes() == (tmp_path / "unbroken.json").read_bytes()
    assert read_journal(tmp_path / "killed.json").ended(9)


def test_samples_of_the_journal_come_before_new_ones(tmp_path: Path) -> None:
    """Samples that run side by side end in any order, so that a searcher would not propose the same ones again."""
    path, hill = tmp_path / "journal.json", Hill()
    noted = [{"rate": rate, "width": width} for rate, width in ((0.25, 4), (0.75, 1), (0.02, 2))]
    Journal(samples=[Sample(settings=settings) for settings in noted]).write(path)
    tuned(path, hill)
    settings = list(dict.fromkeys((trial.config["rate"], trial.config["width"]) for trial in hill.trials))
    assert settings[:3] == [(one["rate"], one["width"]) for one in noted]
    assert len(set(settings)) == 9


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    path.write_text('{"samples": [{"set')
    with pytest.raises(XMCBenchError, match=r"journal\.json: not the journal of a tuning; delete it"):
        tuned(path, Hill())


def test_what_the_samples_depend_on_changes_the_journal(tmp_path: Path) -> None:
    tune = Tune.model_validate(SETTINGS)
    other = tune.model_copy(update={"seed": 1})
    places = {journal_path(tmp_path, base(), one, entry) for one in (tune, other) for entry in ("a", "b")}
    assert len(places) == 4


def journal(folder: Path) -> Path:
    """The journal of a tuning that ended."""
    tuned(folder / "journal.json", Hill())
    return folder / "journal.json"


def without_digest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a journal as one of an older xmcbench, which has no digest."""
    content = json.loads(path.read_text())
    del content["digest"]
    change(content)
    path.write_text(json.dumps(content))


def test_a_journal_that_was_edited_is_named(tmp_path: Path) -> None:
    path = journal(tmp_path)
    content = json.loads(path.read_text())
    content["samples"][0]["settings"]["rate"] = 0.3
    path.write_text(json.dumps(content))
    with pytest.raises(XMCBenchError, match=r"journal\.json: edited after it was written"):
        tuned(path, Hill())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda own: own["samples"].extend(own["samples"]), "found 18 samples, expected at most 9"),
        (lambda own: own["samples"][2]["settings"].update(more=1), r"sample 2 has the settings \['more', 'rate',"),
        (lambda own: own["samples"][1]["settings"].update(width=3.5), "sample 1 has width = 3.5, which the space"),
        (lambda own: own["samples"][1]["settings"].update(rate="x"), "sample 1 has rate = 'x', which the space"),
    ],
)
def test_a_journal_of_another_space_is_named(tmp_path: Path, change: Any, problem: str) -> None:
    path = journal(tmp_path)
    without_digest(path, lambda own: None)  # noqa: ARG005
    tuned(path, Hill())  # one of an older xmcbench goes on
    without_digest(path, change)
    with pytest.raises(XMCBenchError, match=problem):
        tuned(path, Hill())


def test_a_pipe_and_a_huge_file_in_place_of_a_journal_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(XMCBenchError, match="not a regular file"):
        read_journal(tmp_path / "pipe.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(JOURNAL_BYTES + 1)
    with pytest.raises(XMCBenchError, match="larger than 50,000,000 bytes"):
        read_journal(tmp_path / "huge.json")
