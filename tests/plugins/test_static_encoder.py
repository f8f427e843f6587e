"""Every method with one text encoder trains a static one, and predicts as before when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine.planning.test_dry_run import METHODS
from fitting import assert_saved_predicts_the_same
from toy import make_run

from xmcbench.data.dataset import TrainingData
from xmcbench.engine.encoders.build import build_encoder
from xmcbench.plugins.registry import registry
from xmcbench.trial.run import derive_seed

ENCODER = {"name": "static", "words": "random", "dimension": 24, "word_weights": True, "linear": 32}


@pytest.mark.parametrize("name", METHODS)
def test_a_static_encoder_learns_and_is_saved(name: str, data: TrainingData, tmp_path: Path) -> None:
    kind: Any = registry().method(name.split()[0]).thing
    settings = {"encoder": ENCODER, "batch_size": 16, "learning_rate": 0.01} | METHODS[name]
    method = kind(kind.Config.model_validate(settings))
    run = make_run(tmp_path, {"steps": 6})
    method.fit(data, run)
    first = build_encoder(method.config.encoder, data.texts, derive_seed(run.seed, "weights"), run.cache)
    for part, weight in method.encoder.state_dict().items():
        assert not torch.equal(weight, first.state_dict()[part]), part
    assert_saved_predicts_the_same(method, kind(method.config), data.texts, tmp_path)
