from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.engine.embedding_method import warmup_linear


@given(fraction=st.floats(0, 3), warmup=st.floats(0, 0.99))
def test_a_factor_is_never_negative_nor_above_one(fraction: float, warmup: float) -> None:
    assert 0 <= warmup_linear(fraction, warmup) <= 1


@given(warmup=st.floats(0.01, 0.9), part=st.floats(0, 1))
def test_it_rises_to_the_peak_in_a_line_and_falls_to_zero_in_another(warmup: float, part: float) -> None:
    assert warmup_linear(warmup, warmup) == pytest.approx(1)
    assert warmup_linear(part * warmup, warmup) == pytest.approx(part)
    assert warmup_linear(warmup + part * (1 - warmup), warmup) == pytest.approx(1 - part)


def test_without_warmup_it_begins_at_the_peak() -> None:
    assert [warmup_linear(fraction, 0) for fraction in (0, 0.25, 1, 1.5)] == [1, 0.75, 0, 0]
