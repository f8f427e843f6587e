"""The figure of `xmcbench datasets show --figures`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xmcbench.data.dataset import Dataset
from xmcbench_plugins.analysis.plots import COLOURS, drawing, plain

MAX_POINTS = 2000  # of the curve


def label_distribution(dataset: Dataset, path: Path) -> None:
    """Draw the training queries per label, from frequent to rare, with the card's bounds of head and tail."""
    card = dataset.card
    counts = np.sort(np.bincount(dataset.train.targets.indices, minlength=card.num_labels))[::-1]
    seen = counts[counts > 0]
    ranks = np.unique(np.geomspace(1, max(1, len(seen)), MAX_POINTS).astype(int))
    with drawing(path) as axes:
        axes.loglog(ranks[ranks <= len(seen)], seen[ranks[ranks <= len(seen)] - 1], color=COLOURS[0])
        for count, name in ((card.head_at_least, "head"), (card.tail_at_most, "tail")):
            axes.axhline(max(count, 0.5), color=COLOURS[7], linewidth=0.6, linestyle=":")
            axes.annotate(name, (1, max(count, 0.5)), xytext=(0, 2), textcoords="offset points", fontsize=7)
        axes.set_xlabel("labels, most frequent first")
        axes.set_ylabel("training queries per label")
        axes.set_title(plain(f"{card.name}: {card.num_labels - len(seen):,} labels without a training query"))
