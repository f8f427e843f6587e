"""Every bundled method trains, mines, predicts, resumes and saves on a GPU, and waits for it only where it has to."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fitting import assert_saved_predicts_the_same, fit_and_kill

from xmcbench.runs.predicting import differs
from xmcbench.trial.predictions import Predictions

from .places import DEVICE, models_on
from .trainings import DATA, TRAININGS, Outcome, build, data_of, run_of, train

pytestmark = pytest.mark.gpu
CLOSE = 1e-3  # relative: sums are rounded otherwise, and a step of Adam divides small gradients by their own size
CHOSEN_OTHERWISE = 0.1  # where rounding chose another label among equal ones
OF_THE_LOSS = {"classifier": "Classifier._step, aten::_local_scalar_dense"}
OF_THE_LOSS |= {"cross-encoder": "CrossEncoderRanker._train, aten::_local_scalar_dense"}
TRAINED = [name for name in TRAININGS if name != "untrained"]
# On the CPU every method resumes in its own tests; what a device adds is the place of the tensors that are restored.
RESUMED = TRAINED if DEVICE == "cuda" else ["dexml, hard", "dexml, embedding-cache", "prime", "ova", "classifier"]


@cache
def on_the_gpu(name: str, root: Path) -> Outcome:
    return train(name, root)


@pytest.fixture
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The training of this name on the GPU; trained once."""
    name: str = request.param
    return on_the_gpu(name, tmp_path_factory.getbasetemp() / f"gpu {name}")


def assert_close(found: Predictions, wanted: Predictions, *, chooses: bool) -> None:
    """Scores at each rank are close; so is that of each label, but labels of like scores may change places.

    A score near 0 is a sum of larger terms, whose rounding counts: the bound is of the largest score.
    """
    if not chooses:
        largest = max(1.0, float(abs(wanted.scores).max()))
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=CLOSE, atol=CLOSE * largest)
    assert not differs(found, wanted).any()


@pytest.mark.parametrize("outcome", TRAININGS, indirect=True)
def test_losses_charges_and_predictions_are_those_of_the_cpu(outcome: Outcome, tmp_path: Path) -> None:
    with models_on("cpu"):
        wanted = train(outcome.name, tmp_path)
    chooses = TRAININGS[outcome.name].chooses
    assert len(outcome.metrics) == len(wanted.metrics)
    np.testing.assert_allclose(outcome.metrics[:1], wanted.metrics[:1], rtol=CLOSE)
    np.testing.assert_allclose(outcome.metrics, wanted.metrics, rtol=CHOSEN_OTHERWISE if chooses else CLOSE)
    assert_close(outcome.predictions, wanted.predictions, chooses=chooses)
    if not chooses:  # matrix products of a backward pass are computed in the device's own thread
        assert outcome.operations == wanted.operations


@pytest.mark.parametrize("outcome", TRAINED, indirect=True)
def test_a_step_waits_for_its_loss_and_for_nothing_else_without_a_reason(outcome: Outcome) -> None:
    """The last step, which begins no epoch; the reasons are in `trainings.py`."""
    wanted = Counter({OF_THE_LOSS.get(outcome.name, "Training.step, to the CPU"): 1})
    wanted.update(TRAININGS[outcome.name].waits)
    if DEVICE == "cuda":  # which tells where it waited, not for what
        assert outcome.waits[-1].total() <= wanted.total(), outcome.waits[-1]
    else:
        assert outcome.waits[-1] == wanted


@pytest.mark.parametrize("outcome", RESUMED, indirect=True)
def test_a_killed_run_ends_like_an_unbroken_one(outcome: Outcome, tmp_path: Path) -> None:
    name = outcome.name
    fit_and_kill(3, build(name, outcome.root), data_of(name), run_of(name, tmp_path))
    resumed = build(name, outcome.root)
    resumed.fit(data_of(name), run_of(name, tmp_path))
    assert_close(resumed.predict(DATA.texts, 10), outcome.predictions, chooses=TRAININGS[name].chooses)


@pytest.mark.parametrize("outcome", TRAININGS, indirect=True)
def test_what_is_saved_predicts_the_same(outcome: Outcome, tmp_path: Path) -> None:
    assert_saved_predicts_the_same(outcome.method, build(outcome.name, outcome.root), DATA.texts, tmp_path)
    with models_on("cpu"):
        loaded = build(outcome.name, outcome.root)
        loaded.load(tmp_path / "saved")
        assert_close(loaded.predict(DATA.texts, 10), outcome.predictions, chooses=False)
