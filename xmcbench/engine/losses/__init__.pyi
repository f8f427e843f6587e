from .bce import binary_cross_entropy
from .positives import Positives, label_to_query
from .score_sums import pair_scores
from .settings import TrainedPositives, TripletLoss
from .soft_top_k_loss import soft_top_k
from .softmax_losses import decoupled_softmax, pal, psl, softmax
from .triplet_loss import DynamicMargin, hardest_pairs, triplet

__all__ = [
    "DynamicMargin",
    "Positives",
    "TrainedPositives",
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
