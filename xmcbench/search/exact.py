"""Exact top-k inner-product search in torch.

Legend: N queries, L labels, D dimensions, C queries of a chunk, K results.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmcbench.predictions import Predictions

CHUNK_SCORES = 1 << 25  # scores held at once: 128 MiB of float32


def top_k(queries_ND: Tensor, labels_LD: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
    """The `k` labels of highest inner product for each query; ties rank by lower label id.

    `exclude` [N, L] marks pairs that must not be returned; a query with fewer than `k` others is padded with -1.
    Raises ValueError where k exceeds the number of labels.
    """
    num_labels = labels_LD.shape[0]
    if k > num_labels:
        raise ValueError(f"top {k} of {num_labels} labels")
    labels_DL = labels_LD.float().T.contiguous()
    indices, scores = [], []
    rows = max(1, CHUNK_SCORES // num_labels)
    for start in range(0, queries_ND.shape[0], rows):
        scores_CL = queries_ND[start : start + rows].float() @ labels_DL
        if exclude is not None:
            part = exclude[start : start + rows].tocoo()
            scores_CL[torch.from_numpy(part.row).long(), torch.from_numpy(part.col).long()] = -torch.inf
        values_CK, labels_CK = _top_k_by_lower_id(scores_CL, k)
        indices.append(labels_CK.masked_fill(values_CK == -torch.inf, -1).int().cpu().numpy())
        scores.append(values_CK.cpu().numpy())
    if not indices:
        return Predictions(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
    return Predictions(np.concatenate(indices), np.concatenate(scores))


def _top_k_by_lower_id(scores_CL: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values_CK, labels_CK = scores_CL.topk(k, dim=1)
    # topk breaks ties as it likes. Inside the result a stable sort mends that; where more labels reach the last
    # score than fit, the whole row is sorted again.
    labels_CK, by_label_CK = labels_CK.sort(dim=1)
    values_CK, by_value_CK = values_CK.gather(1, by_label_CK).sort(dim=1, descending=True, stable=True)
    labels_CK = labels_CK.gather(1, by_value_CK)
    crowded_C = (scores_CL >= values_CK[:, -1:]).sum(1) > k
    if bool(crowded_C.any()):
        values, labels = scores_CL[crowded_C].sort(dim=1, descending=True, stable=True)
        values_CK[crowded_C], labels_CK[crowded_C] = values[:, :k], labels[:, :k]
    return values_CK, labels_CK
