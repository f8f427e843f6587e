from .positives import Positives, label_to_query
from .score_sums import binary_cross_entropy, pair_scores
from .settings import TrainedPositives, TripletLoss
from .soft_top_k_loss import soft_top_k
from .softmax_losses import decoupled_softmax, pal, psl, softmax
from .table_bce import cross_entropy_of_rows
from .triplet_loss import DynamicMargin, hardest_pairs, triplet

__all__ = [
    "DynamicMargin",
    "Positives",
    "TrainedPositives",
    "TripletLoss",
    "binary_cross_entropy",
    "cross_entropy_of_rows",
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
