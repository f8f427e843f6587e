"""The similarity of each label to its nearest labels.

Legend: L labels, D dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xmcbench.engine.search.exact import ExactIndex

NEIGHBOURS = 10  # DEXML, Section C.7


@torch.inference_mode()
def mean_similarity(vectors_LD: Tensor, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """[L] the mean cosine of each label with its `neighbours` nearest other labels (all others if there are fewer).

    Raises ValueError for fewer than two labels.
    """
    num_labels = len(vectors_LD)
    if num_labels < 2:
        raise ValueError(f"{num_labels} labels have no neighbours, expected at least two")
    unit_LD = torch.nn.functional.normalize(vectors_LD.to(torch.float32), dim=-1)
    near = min(neighbours, num_labels - 1)
    nearest = ExactIndex(unit_LD).top_k(unit_LD, near + 1)
    itself = nearest.indices == np.arange(num_labels)[:, None]
    itself[~itself.any(axis=1), -1] = (
        True  # duplicates with lower ids pushed the label itself out: drop the last instead
    )
    similarity: np.ndarray = nearest.scores[~itself].reshape(num_labels, near).mean(axis=1)
    return similarity
