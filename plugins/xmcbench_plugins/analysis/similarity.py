"""How alike the vectors of labels are, by which `xmcbench analyse --similarity` bins labels.

Legend: L labels, D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

NEIGHBOURS = 10  # DEXML, Section C.7


def mean_similarity(vectors_LD: Tensor) -> np.ndarray:
    """[L] the mean cosine of each label with its `NEIGHBOURS` nearest other labels (all others if there are fewer).

    Raises ValueError for fewer than two labels.
    """
    import torch

    from xmcbench import search

    if (num_labels := len(vectors_LD)) < 2:
        raise ValueError(f"{num_labels} labels have no neighbours, expected at least two")
    near = min(NEIGHBOURS, num_labels - 1)
    with torch.inference_mode():
        unit_LD = torch.nn.functional.normalize(vectors_LD.to(torch.float32), dim=-1)
        nearest = search.ExactIndex(unit_LD).top_k(unit_LD, near + 1)
    itself = nearest.indices == np.arange(num_labels)[:, None]
    itself[~itself.any(axis=1), -1] = True  # duplicates with lower ids pushed the label itself out: drop the last
    similarity: np.ndarray = nearest.scores[~itself].reshape(num_labels, near).mean(axis=1)
    return similarity
