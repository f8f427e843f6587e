"""The journal of a tuning: the samples that were proposed, and the trials that each of them took.

`tables` reads from it which trials the choice rests on, and a tuning that was killed goes on with the same samples: how
samples that run side by side finish is left to chance, and so is what a searcher proposes after them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write
from xmcbench.suite.tuning import Tune
from xmcbench.trial.trial import Trial

FOLDER = "tunings"  # in the store


class Noted(BaseModel):
    """A sample."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    settings: dict[str, Any]
    trials: list[str] = []  # keys, from the smallest budget to the largest; empty until the sample has ended
    repeats: list[str] = []  # keys of the trials with other seeds, of a finalist


class Journal(BaseModel):
    """The samples of one method on one dataset, in the order of their proposal."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    samples: list[Noted] = []

    def ended(self, num_samples: int) -> bool:
        """Whether all samples of a tuning have ended."""
        return len(self.samples) == num_samples and all(sample.trials for sample in self.samples)

    def write(self, path: Path) -> None:
        with atomic_write(path) as file:
            file.write(self.model_dump_json(indent=1).encode() + b"\n")


def journal_path(store: Path, base: Trial, tune: Tune, entry: str) -> Path:
    """The journal's place in a store: it changes with everything that the samples depend on."""
    depends_on = [base.key, tune.model_dump(mode="json"), entry]
    name = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    return store / FOLDER / f"{name}.json"


def read_journal(path: Path) -> Journal:
    """The journal at `path`, which is empty where nothing was proposed yet."""
    try:
        return Journal.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Journal()
    except (OSError, ValidationError) as problem:
        raise XMCBenchError(f"{path}: not the journal of a tuning; delete it to propose samples anew") from problem
