"""Our losses have the values and gradients that public code gave on the same tensors (`benchmarks/loss_parity.py`)."""

from __future__ import annotations

from pathlib import Path

import loss_parity
import pytest
import yaml

VALUES = yaml.safe_load(Path(loss_parity.__file__).with_name("loss_values.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VALUES)
def test_loss_and_gradient_are_those_of_the_public_code(name: str) -> None:
    of_loss, of_gradient = loss_parity.difference(loss_parity.measured(loss_parity.OURS[name]), VALUES[name])
    assert max(of_loss, of_gradient) <= loss_parity.TOLERANCE


def test_every_loss_has_values() -> None:
    assert list(VALUES) == list(loss_parity.OURS)
