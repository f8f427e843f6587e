"""The order of labels, score descending and then label ascending, as one integer a pair: a greater key ranks first.

A key holds the bits of the float32 score above those of the inverted label id. So the k greatest keys are the top k,
ties and all, and lists found in different labels are merged by putting their keys side by side.

Legend: N queries, M pairs of a query, K results.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from xmcbench.trial.predictions import Predictions

_MAGNITUDE = 0x7FFF_FFFF  # all bits of a float but its sign; also the greatest int32, from which ids are subtracted


def keys(scores_NM: Tensor, labels_NM: Tensor) -> Tensor:
    """[N, M] int64 keys of pairs with float32 scores; a score of -inf makes a pad, which ranks last."""
    bits_NM = (scores_NM + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0: they tie
    return (_ascending(bits_NM).long() << 32) + (_MAGNITUDE - labels_NM)


def scores_and_labels(keys_NM: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [N, M] float32 and labels [N, M] int64 of keys; the label of a pad is -1."""
    scores_NM = _ascending((keys_NM >> 32).int()).view(torch.float32)
    labels_NM = _MAGNITUDE - (keys_NM & _MAGNITUDE)
    return scores_NM, labels_NM.masked_fill(scores_NM == -torch.inf, -1)


def _ascending(bits: Tensor) -> Tensor:
    """Bits of floats as integers of the same order, and back: those of negative floats descend, and are flipped."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


PAD = int(keys(torch.tensor(-torch.inf), torch.tensor(0)))


def predictions(keys_NK: Tensor) -> Predictions:
    """Ranked keys as a method hands them over."""
    scores_NK, labels_NK = scores_and_labels(keys_NK)
    return Predictions(labels_NK.int().cpu().numpy(), scores_NK.cpu().numpy())


def merge(parts: Sequence[Predictions], k: int) -> Predictions:
    """The best `k` of lists found in disjoint shards of the labels; rows left short are padded.

    Each part holds all N queries, label ids of the whole, and the best `k` labels of its shard or all of them. Where
    labels tie, a shard has to number its labels in the order of their ids.
    """
    pairs = [(torch.from_numpy(part.scores), torch.from_numpy(part.indices).long()) for part in parts]
    keys_NM = torch.cat([keys(scores_NM, labels_NM) for scores_NM, labels_NM in pairs], dim=1)
    keys_NM = pad(keys_NM, (0, max(0, k - keys_NM.shape[1])), value=PAD)
    return predictions(keys_NM.topk(k, dim=1).values)
