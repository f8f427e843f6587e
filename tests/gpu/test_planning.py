"""A plan of any bundled method is the same on a machine with a GPU as on one without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import save_small_encoder

from xmcbench.engine.planning.trials import MACHINES, Planner, TrialPlan
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import Budget
from xmcbench.trial.trial import Trial

from .places import models_on
from .trainings import DATA, TRAININGS, build

pytestmark = pytest.mark.gpu


def planned(name: str, root: Path) -> TrialPlan | str:
    """The plan of a training, without its ledger's clock; or why there is none."""
    training, config = TRAININGS[name], build(name, root).config
    trial = Trial(
        label=name, method=training.method, distribution="xmcbench", version="0",
        config=config.model_dump(mode="json"), dataset="catalog-200", dataset_hash="", seed=0,
        budget=Budget.model_validate(training.budget),
    )  # fmt: skip
    try:
        plan = Planner(root / "data", root / "cache", MACHINES["h100"], 12, 6).plan(trial)
    except XMCBenchError as reason:
        return str(reason)
    ledger: Any = {name: amount for name, amount in plan.ledger.as_dict().items() if name != "stage_cpu_seconds"}
    return replace(plan, ledger=ledger)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_plan_is_that_of_a_machine_without_a_gpu(name: str, tmp_path: Path) -> None:
    save_small_encoder(tmp_path / "encoder", DATA)
    found, method = planned(name, tmp_path), build(name, tmp_path)
    with models_on("cpu"):
        assert found == planned(name, tmp_path)
    reasons = "trains no encoder of its own", getattr(method, "not_planned", "")
    assert isinstance(found, TrialPlan) or found in reasons
