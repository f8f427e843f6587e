"""Trains with DEXML's public code, on a CPU and with a given seed. `parity.py` starts this in a clone of that code.

What is changed from outside, and nothing else: no log goes to wandb; an encoder has its own width in place of 768; the
seed is an argument in place of 42; batches are made in this process; newer releases of transformers lack the name
`batch_encode_plus`. The scores of the last epoch are written as a CSR matrix.
"""

from __future__ import annotations

import json
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import scipy.sparse as sp
import torch
import transformers


class InThisProcess(torch.utils.data.DataLoader[Any]):
    """A loader that makes its batches in the process that takes them."""

    def __init__(self, *found: Any, **options: Any) -> None:
        super().__init__(*found, **options | {"num_workers": 0, "pin_memory": False, "prefetch_factor": None})


def main(seed: int, config: Path, target: Path) -> None:
    width = transformers.AutoConfig.from_pretrained(json.loads(config.read_text())["tf"]).dim
    wandb: Any = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    wandb.init, wandb.log = lambda **_: None, lambda *_, **__: None
    wandb.config, wandb.run = SimpleNamespace(update=lambda _: None), SimpleNamespace(id="none")
    sys.modules["wandb"] = wandb
    sys.path.insert(0, str(Path.cwd()))
    parts: Any = __import__("utils.dl_utils", fromlist=["dl_utils"])
    pooler = parts.create_tf_pooler
    parts.create_tf_pooler = lambda kind: (pooler(kind)[0], width)
    set_seed = transformers.set_seed
    transformers.set_seed = lambda _: set_seed(seed)
    torch.utils.data.DataLoader = InThisProcess  # type: ignore[misc]
    base: Any = transformers.PreTrainedTokenizerBase
    if not hasattr(base, "batch_encode_plus"):
        base.batch_encode_plus = base.__call__
    sys.argv = ["train.py", str(config)]
    ended = runpy.run_path("train.py")
    sp.save_npz(target, ended["score_mat"])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
