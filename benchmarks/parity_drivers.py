"""Trains encoders with public code, on a CPU and with a given seed. `parity.py` starts this in a clone of that code.

What is changed from outside, and nothing else: batches are made in this process, the device is the CPU, without mixed
precision, and

- DEXML: no log goes to wandb; an encoder has its own width in place of 768; the seed is an argument in place of 42;
  newer releases of transformers lack the name `batch_encode_plus`. The scores of the last epoch are written.
- NGAME and PRIME, in their folders `ngame` and `prime`: what `main.py` there does for the encoder is done here, nothing
  is validated while it trains, and labels are ranked by all inner products, in place of a graph's; the best 100 are
  written.
- PRIME: names that other releases have are given back: `AdamW` of transformers, `compute_inv_propensity` of pyxclib, a
  device from `get_device` on a CPU.

Scores are written as a CSR matrix.
"""

from __future__ import annotations

import json
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from transformers import AutoConfig, PreTrainedTokenizerBase, set_seed

FILES = {
    "f_features": "trn_input_ids.npy,trn_attention_mask.npy",
    "f_label_features": "lbl_input_ids.npy,lbl_attention_mask.npy",
    "f_labels": "trn_X_Y.txt",
}


class InThisProcess(torch.utils.data.DataLoader[Any]):
    """A loader that makes its batches in the process that takes them."""

    def __init__(self, *found: Any, **options: Any) -> None:
        super().__init__(*found, **options | {"num_workers": 0, "pin_memory": False, "prefetch_factor": None})


def library() -> Any:
    """The module `transformers` as the clone imports it: importing a part of it may put another one in its place."""
    return sys.modules["transformers"]


def dexml(seed: int, config: Path) -> sp.csr_matrix:
    settings = json.loads(config.read_text())
    width = AutoConfig.from_pretrained(settings["tf"]).dim
    wandb: Any = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    wandb.init, wandb.log = lambda **_: None, lambda *_, **__: None
    wandb.config, wandb.run = SimpleNamespace(update=lambda _: None), SimpleNamespace(id="none")
    sys.modules["wandb"] = wandb
    sys.path.insert(0, str(Path.cwd()))
    parts: Any = __import__("utils.dl_utils", fromlist=["dl_utils"])
    pooler = parts.create_tf_pooler
    parts.create_tf_pooler = lambda kind: (pooler(kind)[0], width)
    library().set_seed = lambda _: set_seed(seed)
    torch.utils.data.DataLoader = InThisProcess  # type: ignore[misc]
    base: Any = PreTrainedTokenizerBase
    if not hasattr(base, "batch_encode_plus"):
        base.batch_encode_plus = base.__call__
    sys.argv = ["train.py", str(config)]
    scores: sp.csr_matrix = runpy.run_path("train.py")["score_mat"]
    return scores


def ngame(seed: int, config: Path) -> sp.csr_matrix:
    settings, code = seeded(seed, config)
    args = Namespace(**settings, network_type="siamese", inference_method=None)
    net = code.construct_network(args)
    net.device = torch.device("cpu")
    optimizer = code.construct_optimizer(args, net)
    schedule = code.construct_schedular(args, optimizer)
    model = code.construct_model(args, net, code.construct_loss(args), optimizer, schedule, None)
    model.fit(
        data_dir=args.data_dir, dataset="", trn_fname=FILES, val_fname=None, validate=False, use_amp=False,
        sampling_params=code.utils.filter_params(args, "sampling_"), max_len=args.max_length,
        feature_type="sequential", num_epochs=args.num_epochs, batch_size=args.batch_size, num_workers=0,
    )  # fmt: skip
    embed = model.get_embeddings
    return best(
        *(
            embed(data=tokens(args.data_dir, part), encoder=encode, feature_type="sequential", max_len=-1)
            for part, encode in (("tst", net.encode_document), ("lbl", net.encode_label))
        )
    )


def prime(seed: int, config: Path) -> sp.csr_matrix:
    library().AdamW = torch.optim.AdamW
    torch.Tensor.get_device = lambda self: self.device  # type: ignore[assignment, return-value]
    sys.path.insert(0, json.loads(config.read_text())["deepxml"])
    metrics: Any = __import__("xclib.evaluation.xc_metrics", fromlist=["xc_metrics"])
    metrics.compute_inv_propensity = metrics.compute_inv_propesity
    settings, code = seeded(seed, config)
    args = Namespace(**settings, stage="siamese")
    net = code.SiameseNetworkIS.from_config(config=args.arch, device="cpu", args=args)
    optimizer, schedule = code.construct_opt_schedular(net, args)
    pipeline = code.construct_pipeline(net, args, None, code.construct_loss(args), optimizer, schedule)
    pipeline.fit(
        data_dir=args.data_dir, trn_fname=FILES, val_fname=None, feature_t="sequential", num_workers=0,
        sampling_params=code.utils.filter_params(args, "sampling_"), validate_interval=args.num_epochs,
        num_epochs=args.num_epochs, batch_size=args.batch_size,
    )  # fmt: skip
    return best(
        *(
            pipeline.get_embeddings(data=tokens(args.data_dir, part), encoder=encode, feature_t="sequential")
            for part, encode in (("tst", net.encode), ("lbl", net.encode_lbl))
        )
    )


def seeded(seed: int, config: Path) -> tuple[dict[str, Any], Any]:
    """The settings, and the module `main` of the clone, which draws from this seed on."""
    torch.utils.data.DataLoader = InThisProcess  # type: ignore[misc]
    sys.path.insert(0, str(Path.cwd()))
    code = __import__("main")
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    return json.loads(config.read_text()), code


def best(queries_QD: np.ndarray, labels_LD: np.ndarray, k: int = 100) -> sp.csr_matrix:
    """The k labels of each query with the largest cosine, as a matrix of these [Q, L]."""
    queries_QD, labels_LD = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries_QD, labels_LD))
    scores_QK, ids_QK = (torch.from_numpy(queries_QD) @ torch.from_numpy(labels_LD).T).topk(min(k, len(labels_LD)))
    starts = np.arange(0, scores_QK.numel() + 1, scores_QK.shape[1])
    shape = len(queries_QD), len(labels_LD)
    return sp.csr_matrix((scores_QK.numpy().ravel(), ids_QK.numpy().ravel(), starts), shape=shape)


def tokens(folder: str, part: str) -> tuple[np.ndarray, ...]:
    names = ("input_ids", "attention_mask")
    return tuple(np.load(Path(folder) / f"{part}_{name}.npy", allow_pickle=False) for name in names)


DRIVERS: dict[str, Callable[[int, Path], sp.csr_matrix]] = {"dexml": dexml, "ngame": ngame, "prime": prime}

if __name__ == "__main__":
    sp.save_npz(sys.argv[4], DRIVERS[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3])))
