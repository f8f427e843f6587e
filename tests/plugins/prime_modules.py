"""PRIME on toy data, with modules of few dimensions in float64 and no encoder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from toy import LABELS, toy_data

from xmcbench import sampling
from xmcbench.engine.sampling.sharding import Shard
from xmcbench.engine.workers import ALONE
from xmcbench_plugins.prime import PRIME

D = 6
DATA = toy_data(ignored=1)
GROUPS = np.arange(LABELS) // 5  # eight clusters of five labels


def prime(**settings: Any) -> PRIME:
    return PRIME(PRIME.Config(**({"encoder": "tiny", "batch_size": 20, "free_vectors": 8} | settings)))


def made(**settings: Any) -> PRIME:
    """A method with modules for embeddings of `D` dimensions and no encoder; networks in float64."""
    method = prime(feedforward=8, prototype_dropout=0.0, **settings)
    method.encoder = SimpleNamespace(dimension=D)  # type: ignore[assignment]
    method.shard = Shard(LABELS, ALONE, GROUPS if method.config.free_vectors else None)
    torch.manual_seed(3)
    method.modules = method.build_modules(DATA)
    method.modules["prototypes"].double()
    with torch.no_grad():
        method.begin(sampling.Embeddings(lambda: rows(len(DATA.texts), 5).float(), lambda: rows(LABELS, 6).float()))
    return method


def rows(count: int, seed: int) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(method: PRIME) -> tuple[sampling.Batch, Tensor, Tensor]:
    """A batch, and embeddings of its queries and labels that ask for a gradient."""
    batch = method.sampler(DATA, 0).batch(0, 0)
    return batch, rows(len(batch.query_ids), 1).requires_grad_(), rows(len(batch.label_ids), 2).requires_grad_()
