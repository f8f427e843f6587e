"""Device seconds of an encoder and of a search, measured on samples: the `Pace` of passes that are predicted.

Legend: N queries, L labels, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from xmcbench.engine.device import default_device, synchronise

if TYPE_CHECKING:
    from torch import Tensor

    from xmcbench.data.tokens import Tokens

SAMPLED_QUERIES, SAMPLED_LABELS, SAMPLED_NEIGHBOURS = 256, 16_384, 100  # of a search that is timed
SAMPLED_OWN = 1024  # labels of a search by a method's own score


def seconds_of(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """The seconds of the second of two calls of `run`; the first one warms up."""
    taken = 0.0
    for _ in range(2):
        start = clock()
        run()
        synchronise()
        taken = clock() - start
    return taken


def spread_sample(queries: Tokens, most_tokens: int) -> Tokens:
    """Texts that lie evenly among `queries`, with about `most_tokens` tokens together, and at least one text."""
    lengths_N = queries.lengths
    count = max(1, min(len(lengths_N), int(most_tokens / max(1.0, float(lengths_N.mean())))))
    return queries.take(np.unique(np.linspace(0, len(lengths_N) - 1, count).astype(int)))


def random_vectors(num_labels: int, dimension: int) -> tuple[Tensor, Tensor]:
    """Normally distributed vectors of `SAMPLED_QUERIES` queries [N, D] and of at most `SAMPLED_LABELS` labels [L, D].

    They are drawn with a fixed seed, on the CPU, and lie on the device.
    """
    random = torch.Generator().manual_seed(0)
    queries_ND = torch.randn(SAMPLED_QUERIES, dimension, generator=random)
    labels_LD = torch.randn(min(num_labels, SAMPLED_LABELS), dimension, generator=random)
    return queries_ND.to(default_device()), labels_LD.to(default_device())
