"""The groups of labels that share a worker: a resumed run, on any number of workers, has those of its first start.

Legend: L labels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from xmcbench.engine.device import default_device
from xmcbench.files.atomic import atomic_write
from xmcbench.files.manifest import DamagedFolder, add_to_manifest, check_manifest

if TYPE_CHECKING:
    from xmcbench.engine.workers import Workers

GROUPS = "label_groups.npy"  # beside the checkpoints
_log = logging.getLogger(__name__)


def first_groups(folder: Path, compute: Callable[[], np.ndarray | None], workers: Workers) -> np.ndarray | None:
    """[L] the groups in `folder` if checkpoints stand beside them, else those that `compute` returns, which are stored.

    Groups may be made of embeddings, which depend on the number of workers by rounding; the table rows of a checkpoint
    are sharded by the first groups. Where workers disagree, worker 0's groups count. None: a method without groups.
    """
    if (stored_L := _stored_groups(folder)) is not None:
        return stored_L
    if (groups_L := compute()) is None:
        return None
    local_L = torch.from_numpy(groups_L.astype(np.int64)).to(default_device())
    agreed_L: np.ndarray = workers.max(local_L if workers.rank == 0 else torch.zeros_like(local_L)).cpu().numpy()
    if workers.rank == 0:
        with atomic_write(folder / GROUPS) as file:
            np.save(file, agreed_L, allow_pickle=False)
        add_to_manifest(folder, GROUPS)
    return agreed_L


def _stored_groups(folder: Path) -> np.ndarray | None:
    """The groups of an earlier start; None where there is no checkpoint, or where their file is damaged."""
    if not any(folder.glob("step-*")) or not (folder / GROUPS).exists():
        return None
    try:
        check_manifest(folder, [GROUPS])
        stored_L: np.ndarray = np.load(folder / GROUPS, allow_pickle=False)
    except DamagedFolder as damage:
        _log.warning("warning: %s; the groups are computed again", damage)
        return None
    return stored_L
