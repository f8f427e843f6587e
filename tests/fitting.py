"""What tests of methods do alike: kill a run on the way, fit random pairs, save and load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from toy import LABELS, make_run, save_small_encoder

from xmcbench import losses
from xmcbench.data import load
from xmcbench.data.dataset import Texts, TrainingData
from xmcbench.engine.training import checkpoints
from xmcbench.trial.method import Method
from xmcbench.trial.run import Progress, Run

M = TypeVar("M", bound=Method)


class Killed(Exception):
    """What ends a run somewhere."""


def killer(**at: float) -> Callable[[Progress], None]:
    """A `report` that kills the run once its figures are these."""

    def report(progress: Progress) -> None:
        if at.items() <= progress.metrics.items():
            raise Killed

    return report


def unbroken_and_resumed(
    make: Callable[[], M], data: TrainingData, root: Path, steps: int = 5, kill: int = 3
) -> tuple[M, M]:
    """Two trained methods: one without a break, and one that goes on where a third was killed."""
    unbroken, resumed = make(), make()
    unbroken.fit(data, make_run(root / "unbroken", {"steps": steps}))
    fit_and_kill(kill, make(), data, make_run(root / "killed", {"steps": steps}))
    resumed.fit(data, make_run(root / "killed", {"steps": steps}))
    return unbroken, resumed


def fit_and_kill(step: int, method: Method, data: TrainingData, run: Run) -> None:
    """Fit with a checkpoint after each step, until the run is killed: the last step has none yet."""
    run = replace(run, report=killer(step=step))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SECONDS", -1.0)
        with pytest.raises(Killed):
            method.fit(data, run)


def share_memorised(make: Callable[[str], Method], root: Path, budget: dict[str, Any], pairs: int = 200) -> float:
    """Of random pairs, the share that a method tells after it is fitted to them; `make` is given a small encoder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XMCBENCH_CACHE", str(root / "data"))
        dataset = load(f"random-pairs-{pairs}")
        train = dataset.training_data()
    method = make(save_small_encoder(root, train))
    method.fit(train, make_run(root, budget))
    top = method.predict(dataset.test.texts, 1).indices[:, 0]
    return float(np.mean(top == np.arange(pairs)))


def assert_triplet_settings_count(make: Callable[..., Any], data: TrainingData) -> dict[str, Any]:
    """The loss of the method that `make` makes of settings is the triplet loss with them, and each changes it.

    Returns the settings from which one at a time is changed.
    """
    batch = make().sampler(data, 0).batch(0, 0)
    generator, sizes = torch.Generator().manual_seed(0), (len(batch.query_ids), len(batch.label_ids))
    both = [torch.nn.functional.normalize(torch.randn(n, 8, generator=generator), dim=1) for n in sizes]
    common = *both, batch.positives, batch.positives.weights("drawn")
    defaults = {"margin": 0.3, "hardest": 10, "weight_temperature": 0.1, "bystanders": "zero logit"}
    changes: list[dict[str, Any]] = [{}, {"bystanders": "excluded"}, {"margin": 0.2}, {"hardest": 3}]
    changes += [{"weight_temperature": 0.5}, {"weight_temperature": None}]
    found = set()
    for settings in (defaults | changed for changed in changes):
        value = make(**settings).loss(*both, batch).item()
        assert value == pytest.approx(losses.triplet(*common, over_negatives="mean", **settings).item())
        found.add(value)
    assert len(found) == len(changes)
    return defaults


def assert_saved_predicts_the_same(method: Method, again: Method, texts: Texts, root: Path) -> None:
    """`again` is loaded with what `method` saves in `root`/saved."""
    (root / "saved").mkdir()
    method.save(root / "saved")
    again.load(root / "saved")
    for k in (1, LABELS):
        wanted, found = method.predict(texts, k), again.predict(texts, k)
        assert np.array_equal(found.indices, wanted.indices)
        assert np.array_equal(found.scores, wanted.scores)
