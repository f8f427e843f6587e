"""Keys sort as scores and labels do."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.engine.search.exact import PAD, keys, scores_and_labels

FLOATS = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, 1.0, -1.0]))
LABELS = st.integers(0, 2**31 - 1)


@given(pairs=st.lists(st.tuples(FLOATS, LABELS), min_size=1, unique_by=lambda pair: pair[1]))
def test_keys_descend_by_score_then_ascending_label(pairs: list[tuple[float, int]]) -> None:
    scores, labels = torch.tensor([s for s, _ in pairs]), torch.tensor([label for _, label in pairs])
    order = keys(scores, labels).argsort(descending=True).numpy()
    np.testing.assert_array_equal(order, np.lexsort((labels.numpy(), -scores.numpy())))


@given(score=FLOATS, label=LABELS)
def test_keys_hold_the_score_and_the_label(score: float, label: int) -> None:
    found_score, found_label = scores_and_labels(keys(torch.tensor(score), torch.tensor(label)))
    assert float(found_score) == score
    assert int(found_label) == (label if score > -np.inf else -1)


def test_a_pad_ranks_last() -> None:
    lowest = torch.tensor(torch.finfo(torch.float32).min)
    assert int(keys(lowest, torch.tensor(2**31 - 1))) > PAD
    assert [float(part) for part in scores_and_labels(torch.tensor(PAD))] == [-np.inf, -1]
