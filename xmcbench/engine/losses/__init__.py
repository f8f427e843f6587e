"""Losses: pure functions on embeddings and sparse positives."""

from xmcbench.engine.losses.bce import binary_cross_entropy
from xmcbench.engine.losses.positives import Positives, label_to_query
from xmcbench.engine.losses.score_sums import pair_scores
from xmcbench.engine.losses.settings import TripletLoss
from xmcbench.engine.losses.soft_top_k import soft_top_k
from xmcbench.engine.losses.softmax import decoupled_softmax, pal, psl, softmax
from xmcbench.engine.losses.triplet import DynamicMargin, hardest_pairs, triplet

__all__ = [
    "DynamicMargin",
    "Positives",
    "TripletLoss",
    "binary_cross_entropy",
    "decoupled_softmax",
    "hardest_pairs",
    "label_to_query",
    "pair_scores",
    "pal",
    "psl",
    "soft_top_k",
    "softmax",
    "triplet",
]
