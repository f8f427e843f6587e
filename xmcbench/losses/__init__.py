"""Losses: pure functions on embeddings and sparse positives."""

from xmcbench.losses.bce import binary_cross_entropy
from xmcbench.losses.positives import Positives, label_to_query
from xmcbench.losses.score_sums import pair_scores
from xmcbench.losses.settings import TripletLoss
from xmcbench.losses.soft_top_k import soft_top_k
from xmcbench.losses.softmax import decoupled_softmax, pal, psl, softmax
from xmcbench.losses.triplet import DynamicMargin, hardest_pairs, triplet

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
