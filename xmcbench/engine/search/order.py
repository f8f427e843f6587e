"""The ranking order, by descending score and then ascending label, as one integer key per pair.

The high bits of a key are the float32 score, the low bits the inverted label id. The k largest keys are therefore the
top k, ties included.

Legend: N queries, M pairs of a query, K results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xmcbench.trial.predictions import Predictions

_MAGNITUDE = 0x7FFF_FFFF  # all bits of a float but its sign; also the greatest int32, from which ids are subtracted


def keys(scores_NM: Tensor, labels_NM: Tensor) -> Tensor:
    """[N, M] int64 keys of pairs with float32 scores; a score of -inf marks padding, which ranks last."""
    bits_NM = (scores_NM + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0, so that they tie
    return (_ascending(bits_NM).long() << 32) + (_MAGNITUDE - labels_NM)


def scores_and_labels(keys_NM: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [N, M] float32 and labels [N, M] int64 of keys; the label of padding is -1."""
    scores_NM = _ascending((keys_NM >> 32).int()).view(torch.float32)
    labels_NM = _MAGNITUDE - (keys_NM & _MAGNITUDE)
    return scores_NM, labels_NM.masked_fill(scores_NM == -torch.inf, -1)


def _ascending(bits: Tensor) -> Tensor:
    """Float bits as integers in the same order, and back. The bits of negative floats descend and are flipped."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


PAD = int(keys(torch.tensor(-torch.inf), torch.tensor(0)))


def predictions(keys_NK: Tensor) -> Predictions:
    """Ranked keys as predictions."""
    scores_NK, labels_NK = scores_and_labels(keys_NK)
    return Predictions(labels_NK.int().cpu().numpy(), scores_NK.cpu().numpy())
