"""Samplers: which queries make a batch, and which labels they are scored against."""

from xmcbench.sampling.builtin import AllLabels, HardNegatives, InBatch
from xmcbench.sampling.sampler import Batch, Embeddings, Sampler

__all__ = ["AllLabels", "Batch", "Embeddings", "HardNegatives", "InBatch", "Sampler"]
