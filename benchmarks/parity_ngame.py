"""Trains NGAME's encoder with its public code, on a CPU and with a given seed. `parity.py` starts this in its
folder `ngame`.

What `main.py` there does for the encoder is done here, and nothing else is changed: the device is the CPU, without
mixed precision; batches are made in this process; nothing is validated while it trains. Labels are
ranked by all inner products, in place of a graph's. The best 100 are written as a CSR matrix.
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
from parity_dexml import InThisProcess


def best(queries_QD: np.ndarray, labels_LD: np.ndarray, k: int = 100) -> sp.csr_matrix:
    """The k labels of each query with the largest cosine, as a matrix of these [Q, L]."""
    queries_QD, labels_LD = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries_QD, labels_LD))
    scores_QK, ids_QK = (torch.from_numpy(queries_QD) @ torch.from_numpy(labels_LD).T).topk(min(k, len(labels_LD)))
    starts = np.arange(0, scores_QK.numel() + 1, scores_QK.shape[1])
    shape = len(queries_QD), len(labels_LD)
    return sp.csr_matrix((scores_QK.numpy().ravel(), ids_QK.numpy().ravel(), starts), shape=shape)


def tokens(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    ids, mask = (np.load(folder / f"{part}_{name}.npy", allow_pickle=False) for name in ("input_ids", "attention_mask"))
    return ids, mask


def main(seed: int, settings: dict[str, Any], target: Path) -> None:
    torch.utils.data.DataLoader = InThisProcess  # type: ignore[misc]
    sys.path.insert(0, str(Path.cwd()))
    code: Any = __import__("main")
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    args = Namespace(**settings, network_type="siamese", inference_method=None)
    net = code.construct_network(args)
    net.device = torch.device("cpu")
    optimizer = code.construct_optimizer(args, net)
    schedule = code.construct_schedular(args, optimizer)
    model = code.construct_model(args, net, code.construct_loss(args), optimizer, schedule, None)
    folder = Path(args.data_dir)
    files = {
        "f_features": "trn_input_ids.npy,trn_attention_mask.npy",
        "f_label_features": "lbl_input_ids.npy,lbl_attention_mask.npy",
        "f_labels": "trn_X_Y.txt",
    }
    model.fit(
        data_dir=args.data_dir, dataset="", trn_fname=files, val_fname=None, validate=False, use_amp=False,
        sampling_params=code.utils.filter_params(args, "sampling_"), max_len=args.max_length,
        feature_type="sequential", num_epochs=args.num_epochs, batch_size=args.batch_size, num_workers=0,
    )  # fmt: skip
    queries_QD, labels_LD = (
        model.get_embeddings(data=tokens(folder, part), encoder=encode, feature_type="sequential", max_len=-1)
        for part, encode in (("tst", net.encode_document), ("lbl", net.encode_label))
    )
    sp.save_npz(target, best(queries_QD, labels_LD))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
