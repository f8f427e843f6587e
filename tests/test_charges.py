"""What built-in methods are charged is what an outside counter counts; `benchmarks/charges.py` has every encoder."""

from __future__ import annotations

from pathlib import Path

import charges
import pytest

from xmcbench.plugins.registry import registry
from xmcbench.trial.run import TrainingLog
from xmcbench_plugins.conformance.outside_count import counting_from_outside, miscounted
from xmcbench_plugins.conformance.tiny_trial import ORDINARY, TinyTrial

CHEAP = ("dexml in-batch", "ova e4m3", "sparse-ranker", "classifier", "colbert")
ALL = {"1.00", "1.00, 1.00"}  # cells of a stage of which everything is charged


def problem(label: str, encoder: str, folder: Path) -> str:
    name = label.split()[0]
    settings = charges.settings_with(charges.METHODS[label], name, charges.ENCODERS[encoder])
    log = TrainingLog()
    with counting_from_outside() as counted:
        TinyTrial(name, settings, folder, ORDINARY).fit(log=log)
    assert counted.flops or counted.bag_flops
    return miscounted(counted, log.ledger, frozen=encoder == "LoRA")


@pytest.mark.parametrize("label", CHEAP)
def test_each_stage_is_charged_what_an_outside_counter_counts(label: str, tmp_path: Path) -> None:
    found = dict(charges.cells(label, "static", tmp_path))
    assert charges.TRAIN in found
    assert {*found.values()} <= ALL, found


@pytest.mark.slow
@pytest.mark.parametrize("encoder", charges.ENCODERS)
@pytest.mark.parametrize("label", charges.METHODS)
def test_it_confirms_them_with_every_encoder(label: str, encoder: str, tmp_path: Path) -> None:
    """With soft top-k and the smallest encoder the scores that are computed again are a fifth of a step."""
    found = problem(label, encoder, tmp_path)
    assert found == "" or (label, encoder) == ("dexml soft-top-k", "static")


def test_every_method_with_an_encoder_is_measured() -> None:
    measured = {label.split()[0] for label in charges.METHODS}
    kinds = {plugin.name: plugin.thing for plugin in registry().all("method")}
    own = {name for name, kind in kinds.items() if {"encoder", "first", "parts"} & kind.Config.model_fields.keys()}
    assert own - measured == {"pecos-xrtransformer"}  # a program of others
