"""Defaults of the settings of a training, derived from the data and the budget. Importing this costs no torch.

The defaults of a method are its paper's, for data a hundred times larger than most people have. Here is the one rule
that fits them to less:

- The batch is the largest power of two, up to the method's own, that leaves enough steps (of most methods `STEPS`, by
  the encoder's kind) and `PARTS` batches in an epoch; at least `SMALLEST_BATCH`.
- The learning rate follows the encoder's kind, and the square root of the batch.
- Shortlists and clusters come at shares of the epochs that the budget allows. A budget of tokens pays for the passes
  over the data that shortlists take, each about as much as an epoch: one of fewer than `FEW_EPOCHS` has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from xmcbench.data.extent import Extent
from xmcbench.engine.encoders.settings import RANDOM_ENCODERS, STATIC
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import SMALLEST_BATCH

# The least steps of a training, by kind of encoder; batches are as large as the budget allows with so many steps. Word
# vectors learn fast, and larger batches have more negatives.
STEPS = {"static": 200, "random": 500, "pretrained": 500}
PARTS = 8  # the least batches in an epoch
UNKNOWN = 3.0  # epochs that are assumed of a budget that limits neither epochs nor steps nor tokens
RATES = {"static": 5e-3, "random": 1.5e-3, "pretrained": 1e-4}  # of a batch of `OF_BATCH`, by kind of encoder
OF_BATCH = 64
SHORTLISTS = 4  # the most refreshes of shortlists in a training
FEW_EPOCHS = 2.5  # a budget of tokens for fewer epochs trains without shortlists, which cost a pass over all texts
LONG = 100.0  # a training of at least so many epochs has the schedules and positives that the method itself defines
CLUSTER = 8  # queries of a cluster; at most an eighth of the batch
LabelsOfStep = Callable[[int], float]  # the label texts that a step encodes, by batch size


def epochs_of(budget: Budget, data: Extent, batch_size: int, labels: float) -> float:
    """About how many epochs a budget allows, with this many labels encoded per step; mining is not counted."""
    limits, batches = budget.spending(), data.queries / batch_size
    tokens = data.queries * data.query_tokens + batches * labels * data.label_tokens
    allowed = [limits.get("epochs", math.inf), limits.get("steps", math.inf) / batches]
    allowed.append(limits.get("encoder_tokens", math.inf) / tokens)
    return min(allowed) if min(allowed) < math.inf else UNKNOWN


def batch_size(most: int, least_steps: int, data: Extent, budget: Budget, labels_of_step: LabelsOfStep) -> int:
    """The largest power of two that leaves so many steps; `most` itself where that leaves them."""

    def leaves_enough(size: int) -> bool:
        steps = epochs_of(budget, data, size, labels_of_step(size)) * data.queries / size
        return size * PARTS <= data.queries and (steps >= least_steps or "steps" in budget.spending())

    powers = (2**power for power in range(most.bit_length() - 1, 0, -1))
    sizes = (size for size in (most, *powers) if size > SMALLEST_BATCH and leaves_enough(size))
    return next(sizes, min(most, SMALLEST_BATCH))


def kind(encoder: str) -> str:
    """`static`, `random` or `pretrained`: what an encoder of this name starts from."""
    return "static" if encoder == STATIC else "random" if encoder in RANDOM_ENCODERS else "pretrained"


def learning_rate(encoder: str, batch: int) -> float:
    """The peak rate for an encoder by its name and a batch, to one digit; the root's growth ends at sixteen times.

    >>> learning_rate("static", 64), learning_rate("minilm", 1024), learning_rate("nano", 32)
    (0.005, 0.0004, 0.001)
    """
    return float(f"{RATES[kind(encoder)] * min(4.0, math.sqrt(batch / OF_BATCH)):.1g}")


def schedules(own: Mapping[str, Any], epochs: float, batch: int, *, pays: bool) -> dict[str, Any]:
    """When shortlists and clusters are made, by the names of the settings that samplers share; `own` are the method's.

    Nothing is later or rarer than in the method's own schedule, which stays where there are epochs enough for it; but a
    budget that `pays` for passes over the data and allows few epochs ends before the first shortlist.
    """
    if epochs >= LONG:
        return {}
    refreshes = min(SHORTLISTS, max(1, int(epochs / 2)))
    shares = {"refresh_start": round(epochs / 5), "refresh_every": math.ceil(epochs / refreshes)}
    clusters: dict[str, Any] = {}
    if pays and epochs < FEW_EPOCHS and "refresh_start" in own:
        clusters["refresh_start"] = math.ceil(2 * epochs)  # words tell the epochs roughly
        del shares["refresh_start"]
    if "cluster_growth" in own:
        # Clusters are of the vectors that the steps of an epoch made.
        shares |= dict.fromkeys(("cluster_start", "cluster_every"), max(1, round(epochs / 10)))
        third = math.ceil(epochs / 3)
        clusters["cluster_size"] = max(1, min(CLUSTER, batch // 8))
        clusters["cluster_growth"] = (third, 2 * third) if third > 2 else ()
    return {name: min(share, own[name]) for name, share in shares.items() if name in own} | clusters
