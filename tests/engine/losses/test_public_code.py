"""Our losses have the values and gradients that public code gave on the same tensors (`benchmarks/loss_parity.py`)."""

from __future__ import annotations

from types import ModuleType

import pytest
import yaml
from programs import BENCHMARKS, benchmark

VALUES = yaml.safe_load((BENCHMARKS / "loss_values.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def program() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        return benchmark("loss_parity", patch)


@pytest.mark.parametrize("name", VALUES)
def test_loss_and_gradient_are_those_of_the_public_code(program: ModuleType, name: str) -> None:
    of_loss, of_gradient = program.difference(program.measured(program.OURS[name]), VALUES[name])
    assert max(of_loss, of_gradient) <= program.TOLERANCE


def test_every_loss_has_values(program: ModuleType) -> None:
    assert list(VALUES) == list(program.OURS)
