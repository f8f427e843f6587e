"""Losses: pure functions on embeddings and sparse positives."""

from xmcbench.losses.bce import binary_cross_entropy
from xmcbench.losses.positives import Positives
from xmcbench.losses.soft_top_k import soft_top_k
from xmcbench.losses.softmax import decoupled_softmax, softmax

__all__ = ["Positives", "binary_cross_entropy", "decoupled_softmax", "soft_top_k", "softmax"]
