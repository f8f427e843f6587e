"""Trains PRIME's encoder with its public code, on a CPU and with a given seed. `parity.py` starts this in its
folder `prime`.

What `main.py` there does for the encoder is done here, and nothing else is changed: the device is the CPU, without
mixed precision; batches are made in this process; nothing is validated while it trains. Names that other releases have
are given back: `AdamW` of transformers, `compute_inv_propensity` of pyxclib, a device from `get_device` on a CPU. The
best 100 labels of each query are written as a CSR matrix.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import transformers
from parity_dexml import InThisProcess
from parity_ngame import best, tokens


def main(seed: int, settings: dict[str, Any], target: Path) -> None:
    torch.utils.data.DataLoader = InThisProcess  # type: ignore[misc]
    transformers.AdamW = torch.optim.AdamW  # type: ignore[attr-defined]
    torch.Tensor.get_device = lambda self: self.device  # type: ignore[assignment]
    sys.path[:0] = [str(Path.cwd()), settings.pop("deepxml")]
    metrics: Any = __import__("xclib.evaluation.xc_metrics", fromlist=["xc_metrics"])
    metrics.compute_inv_propensity = metrics.compute_inv_propesity
    code: Any = __import__("main")
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    args = Namespace(**settings, stage="siamese")
    net = code.SiameseNetworkIS.from_config(config=args.arch, device="cpu", args=args)
    optimizer, schedule = code.construct_opt_schedular(net, args)
    pipeline = code.construct_pipeline(net, args, None, code.construct_loss(args), optimizer, schedule)
    files = {
        "f_features": "trn_input_ids.npy,trn_attention_mask.npy",
        "f_label_features": "lbl_input_ids.npy,lbl_attention_mask.npy",
        "f_labels": "trn_X_Y.txt",
    }
    pipeline.fit(
        data_dir=args.data_dir, trn_fname=files, val_fname=None, feature_t="sequential", num_workers=0,
        sampling_params=code.utils.filter_params(args, "sampling_"), validate_interval=args.num_epochs,
        num_epochs=args.num_epochs, batch_size=args.batch_size,
    )  # fmt: skip
    folder = Path(args.data_dir)
    queries_QD, labels_LD = (
        pipeline.get_embeddings(data=tokens(folder, part), encoder=encode, feature_t="sequential")
        for part, encode in (("tst", net.encode), ("lbl", net.encode_lbl))
    )
    sp.save_npz(target, best(queries_QD, labels_LD))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
