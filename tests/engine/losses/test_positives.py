from __future__ import annotations

import torch

from xmcbench.engine.losses import Positives


def test_the_weights_of_each_scheme() -> None:
    chosen = {"one": torch.tensor([0.0, 1.0, 1.0])}
    positives = Positives(torch.tensor([0, 0, 2]), torch.tensor([1, 3, 0]), 3, 4, chosen)
    assert positives.counts_B.tolist() == [2, 0, 1]
    assert positives.every().tolist() == positives.weights("all").tolist() == [1, 1, 1]
    assert positives.averaged().tolist() == [0.5, 0.5, 1]
    assert positives.weights("one").tolist() == [0, 1, 1]
    assert positives.mask().nonzero().tolist() == [[0, 1], [0, 3], [2, 0]]
    assert positives.mask().shape == (3, 4)


def test_without_pairs_there_are_no_weights() -> None:
    none = torch.empty(0, dtype=torch.int64)
    positives = Positives(none, none, 2, 4)
    assert positives.counts_B.tolist() == [0, 0]
    assert positives.every().numel() == positives.averaged().numel() == 0
