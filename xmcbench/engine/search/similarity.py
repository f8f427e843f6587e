"""How much a label is like the labels nearest to it.

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
    """The mean cosine [L] of each label and the `neighbours` nearest other labels (all others where there are fewer).

    Raises ValueError for fewer than two labels.
    """
    num_labels = len(vectors_LD)
    if num_labels < 2:
        raise ValueError(f"{num_labels} labels have no neighbours, expected at least two")
    unit_LD = torch.nn.functional.normalize(vectors_LD.to(torch.float32), dim=-1)
    near = min(neighbours, num_labels - 1)
    found = ExactIndex(unit_LD).top_k(unit_LD, near + 1)
    itself = found.indices == np.arange(num_labels)[:, None]
    itself[~itself.any(axis=1), -1] = True  # equal vectors with lower numbers took its place: the last one goes
    similarity: np.ndarray = found.scores[~itself].reshape(num_labels, near).mean(axis=1)
    return similarity
