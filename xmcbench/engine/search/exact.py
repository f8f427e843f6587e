"""Exact top-k inner-product search in torch, at little more than the cost of the matrix products.

A chunk of queries is scored against a chunk of labels at a time, so small that its scores stay in a processor's cache.
They are read once, for those above the query's threshold (`bar`): the lowest score among the best labels so far. Labels
above it wait until there are enough to be worth sorting; the best of them raise the threshold. Chunks are visited by
ascending label id, so a label that ties with the threshold loses.

The chunks nominate somewhat more than k labels. Each nominated pair is then scored separately in float32, so that its
score is the same in every chunk, shard and backend.

A processor with bf16 products nominates by them in a float32 search too (`_Rounding`). A bound on their error says for
which queries no other label can be among the best; only the other queries need float32 products.

Legend: N queries, L labels, D dimensions, K results; B queries and C labels of a chunk; F scores above the threshold;
M maxima of parts of a chunk, or keys of a query; W nominated labels of a query, A queries ranked at a time, E pairs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from xmcbench.engine import flops
from xmcbench.trial.predictions import Predictions

SPARE = 8  # labels that a search nominates beyond k: float32 products round differently in different chunks
MAX_MAXIMA = 1024  # maxima per query that the first threshold is computed from: more cost more than they save


class Sizes(NamedTuple):
    """How much is processed at a time."""

    rows: int  # queries
    columns: int  # labels, of float32 scores of so many queries; twice as many of bf16
    piece: int  # entries of an intermediate tensor

    def columns_of(self, queries: int) -> int:
        """The number of labels at a time for so many queries: more for few, whose scores take less memory."""
        return self.columns * max(1, min(MOST_TIMES, self.rows // max(1, queries)))


# On a CPU 32 MiB of scores and pieces of 1 MiB, most of which its caches hold; on a GPU 1 GiB each. Numpy compares rows
# of up to 4,096 numbers with a number each at half the speed: it copies two of them into its buffer.
SIZES = {"cpu": Sizes(1 << 11, (1 << 12) + 64, 1 << 18), "cuda": Sizes(1 << 12, 1 << 16, 1 << 28)}
MOST_TIMES = 8  # the columns for few queries: label vectors of other types than float32 are converted in memory


class Index(ABC):
    """Searchable labels, on their device, which must not change later: they are checked once.

    All kinds return the same scores, float32 for vectors of any type, and order; only a graph or clusters may miss
    labels.
    """

    multiplies = True  # whether scores are inner products

    def __init__(self, labels_LD: Tensor) -> None:
        self.labels_LD = labels_LD.detach()
        self.greatest = _greatest(self.labels_LD)

    @torch.no_grad()
    @flops.by_formula()
    def top_k(self, queries_ND: Tensor, k: int, *, exclude: sp.csr_array | None = None) -> Predictions:
        """The `k` labels with the highest inner product for each query [N, k]; ties rank by lower label id.

        Pairs in `exclude` [N, L] are left out; -1 pads short rows. Raises ValueError if k exceeds the number of labels,
        shapes do not fit, or a score might not be finite.
        """
        _check(queries_ND, self.labels_LD, self.greatest, k, exclude, self.multiplies)
        best = Predictions(np.empty((len(queries_ND), k), np.int32), np.empty((len(queries_ND), k), np.float32))
        rows = SIZES[self.labels_LD.device.type].rows
        for start in range(0, len(queries_ND), rows):
            part = slice(start, start + rows)
            queries_BD = queries_ND[part].to(self.labels_LD.device, torch.float32)
            keys_BK = self._search(queries_BD, k, None if exclude is None else exclude[part])
            scores_BK, labels_BK = scores_and_labels(keys_BK)
            best.indices[part], best.scores[part] = labels_BK.int().cpu().numpy(), scores_BK.cpu().numpy()
        return best

    def give_up_vectors(self) -> None:
        """Keep the shape of the labels alone: a kind of index that has the vectors elsewhere calls this once."""
        self.labels_LD = self.labels_LD.new_zeros(()).expand(self.labels_LD.shape)

    @abstractmethod
    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        """[B, K] keys of the best labels, in descending order."""


class ExactIndex(Index):
    """Scores every label.

    Products nominate k + 8 labels. A label is missed only if rounding lifts more than these 8 above it. Where the
    processor multiplies bf16 itself, a search of many queries first nominates 1.5 k + 16 labels by bf16 products;
    queries for which `_Rounding` leaves another label possible are searched again.
    """

    def __init__(self, labels_LD: Tensor) -> None:
        super().__init__(labels_LD)
        self.screens = labels_LD.is_cpu and bf16_multiplies_faster()

    def _search(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        flops.current().flops += 2 * len(queries_BD) * self.labels_LD.numel()
        # Fewer queries save less than the labels' rounding costs.
        if not self.screens or len(queries_BD) <= SIZES[self.labels_LD.device.type].rows // 8:
            return self._best(queries_BD, k, exclude)
        best_BK, unsure_A = self._screened(queries_BD, k, exclude)
        self.screens = len(unsure_A) <= len(queries_BD) // 8  # more cost what the others save
        return best_BK

    def _best(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> Tensor:
        chunks = _scored(self.labels_LD, queries_BD, exclude)
        _, labels_BW = _nominate(chunks, min(len(self.labels_LD), k + SPARE))
        return rank(queries_BD, self.labels_LD, labels_BW, k)

    @cached_property
    def _rounding(self) -> _Rounding:
        return _Rounding(self.labels_LD)

    def _screened(self, queries_BD: Tensor, k: int, exclude: sp.csr_array | None) -> tuple[Tensor, Tensor]:
        """[B, K] keys of the best labels, nominated by bf16 products, and [A] the queries that this did not settle."""
        chunks = _scored(self.labels_LD, queries_BD, exclude, self._rounding.mean_D)
        width = min(len(self.labels_LD), k + 2 * SPARE + k // 2)
        products_BW, labels_BW = _nominate(chunks, width)
        best_BK = rank(queries_BD, self.labels_LD, labels_BW, k)
        of_others_B = products_BW.amin(1)  # at most
        if width == len(self.labels_LD):
            of_others_B = of_others_B.fill_(-torch.inf)
        lowest_B, _ = scores_and_labels(best_BK[:, -1])
        unsure_A = (~(lowest_B >= self._rounding.greatest_scores(queries_BD, of_others_B))).nonzero()[:, 0]
        if len(unsure_A):
            of_unsure = None if exclude is None else exclude[unsure_A.numpy()]
            best_BK[unsure_A] = self._best(queries_BD[unsure_A], k, of_unsure)
        return best_BK, unsure_A


def _check(
    queries_ND: Tensor, labels_LD: Tensor, label: float, k: int, exclude: sp.csr_array | None, multiplies: bool
) -> None:
    """Raise ValueError unless the search is well defined and every inner product finite; `label` is the labels'
    `greatest`.
    """
    shapes = f"queries {list(queries_ND.shape)} and labels {list(labels_LD.shape)}"
    fit = queries_ND.shape[-1:] == labels_LD.shape[-1:] or not multiplies
    if queries_ND.ndim != 2 or labels_LD.ndim != 2 or not fit:
        raise ValueError(f"{shapes}, expected [N, D] and [L, D]")
    if not 1 <= k <= len(labels_LD):
        raise ValueError(f"top {k} of {len(labels_LD)} labels")
    if exclude is not None and exclude.shape != (len(queries_ND), len(labels_LD)):
        raise ValueError(f"excluded pairs {list(exclude.shape)} for {shapes}")
    if not len(queries_ND):
        return
    for name, value in (("query", query := _greatest(queries_ND)), ("label", label)):
        if not math.isfinite(value):
            raise ValueError(f"a {name} vector contains {value}, expected finite numbers")
    if multiplies and queries_ND.shape[1] * query * label >= torch.finfo(torch.float32).max:
        raise ValueError(f"queries up to {query:.3g} and labels up to {label:.3g} overflow float32 scores")


def _greatest(vectors_ND: Tensor) -> float:
    """The largest magnitude of a value, 0 of no values; NaN if any value is NaN."""
    if not vectors_ND.numel():
        return 0.0
    least, most = (float(end) for end in vectors_ND.aminmax())
    return max(-least, most)


class _Rounding:
    """Label vectors minus their mean, rounded to bf16, and how far their products are from the labels' scores.

    The mean shifts all scores of a query equally and keeps the differences between labels. With l' the rounded label,
    q' the rounded query and m the mean, q (l - m) <= q' l' + |q - q'| |l'| + |q| |l - m - l'|.
    """

    def __init__(self, labels_LD: Tensor) -> None:
        self.labels_LD, self.mean_D = labels_LD, labels_LD.mean(0, dtype=torch.float32)

    def greatest_scores(self, queries_BD: Tensor, products_B: Tensor) -> Tensor:
        """[B] float64 bounds of the scores of labels whose bf16 products are at most these, however they are summed.

        Infinite where products may overflow.
        """
        single = torch.finfo(torch.float32)
        rounded, lost = self._longest
        longest = rounded + lost + float(_lengths(self.mean_D[None]))
        query_B, lost_B = _lengths(queries_BD), _lengths(queries_BD - queries_BD.bfloat16().float())
        sums_B = queries_BD.shape[1] * (4 * single.eps * longest * query_B + 8 * single.tiny)
        error_B = lost_B * rounded + query_B * lost + sums_B + products_B.double().abs() * 2**-8
        greatest_B: Tensor = queries_BD.double() @ self.mean_D.double() + products_B.double() + error_B
        greatest_B[products_B == -torch.inf] = -torch.inf
        return greatest_B.masked_fill(~(4 * query_B * rounded < single.max), torch.inf)

    @cached_property
    def _longest(self) -> tuple[float, float]:
        """The greatest length of a rounded label, and of what rounding takes from a label."""
        pairs_M2 = []
        for labels_CD in torch.split(self.labels_LD, _piece(self.labels_LD)):
            centred_CD = labels_CD - self.mean_D
            rounded_CD = centred_CD.bfloat16().float()
            pairs_M2.append([float(_lengths(part_CD).max()) for part_CD in (rounded_CD, centred_CD.sub_(rounded_CD))])
        rounded, lost = np.max(pairs_M2, axis=0)
        return float(rounded), float(lost)


def _lengths(vectors_ND: Tensor) -> Tensor:
    """[N] float64, no less than the lengths of the vectors, which float32 rounds, and to 0 where squares underflow."""
    lengths_N: Tensor = torch.linalg.vector_norm(vectors_ND, dim=1).double()
    return 1.001 * lengths_N + 2 * math.sqrt(vectors_ND.shape[1] * torch.finfo(torch.float32).tiny)


def _piece(labels_LD: Tensor) -> int:
    """The number of label vectors in an intermediate tensor, of several at a time."""
    return max(1, SIZES[labels_LD.device.type].piece // (4 * labels_LD.shape[1]))


def _scored(
    labels_LD: Tensor, queries_BD: Tensor, exclude: sp.csr_array | None, mean_D: Tensor | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Each chunk's first label and scores [B, C], written over those before; excluded pairs are -inf.

    Products are float32; with `mean_D`, they are bf16, of labels minus the mean.
    """
    dtype = torch.float32 if mean_D is None else torch.bfloat16
    columns = SIZES[labels_LD.device.type].columns_of(len(queries_BD)) * torch.float32.itemsize // dtype.itemsize
    columns, queries_BD = min(columns, len(labels_LD)), queries_BD.to(dtype)
    memory = queries_BD.new_empty(len(queries_BD) * columns)
    rounded_CD = queries_BD.new_empty(0 if mean_D is None else columns, labels_LD.shape[1])
    excluded = None if exclude is None else exclude.tocsc()
    for start in range(0, len(labels_LD), columns):
        labels_CD = labels_LD[start : start + columns]
        labels_CD = labels_CD.float() if mean_D is None else _rounded(labels_CD, mean_D, rounded_CD)
        scores_BC = memory[: len(queries_BD) * len(labels_CD)].view(len(queries_BD), -1)
        _multiply(queries_BD, labels_CD, scores_BC)
        if excluded is not None:
            pairs = excluded[:, start : start + len(labels_CD)].tocoo()
            places = (torch.from_numpy(ids).long().to(scores_BC.device) for ids in (pairs.row, pairs.col))
            scores_BC[tuple(places)] = -torch.inf
        yield start, scores_BC


def _rounded(labels_CD: Tensor, mean_D: Tensor, memory_CD: Tensor) -> Tensor:
    """Labels minus the mean in bf16, written into `memory_CD`."""
    rounded_CD, piece = memory_CD[: len(labels_CD)], _piece(labels_CD)
    for labels_MD, rounded_MD in zip(torch.split(labels_CD, piece), torch.split(rounded_CD, piece), strict=True):
        rounded_MD.copy_(labels_MD - mean_D)
    return rounded_CD


def _multiply(queries_BD: Tensor, labels_CD: Tensor, scores_BC: Tensor) -> None:
    """Write the inner products of all queries and labels into `scores_BC`."""
    if scores_BC.is_cpu and scores_BC.dtype == torch.float32 and numpy_multiplies_faster() and not _is_counted():
        np.matmul(queries_BD.numpy(), labels_CD.numpy().T, out=scores_BC.numpy())
    else:
        torch.mm(queries_BD, labels_CD.T, out=scores_BC)


def _is_counted() -> bool:
    """Whether somebody else than the harness counts torch's operations here: such a counter does not see numpy's."""
    return bool(_get_current_dispatch_mode_stack())


@cache
def numpy_multiplies_faster() -> bool:
    """Whether torch multiplies with MKL on a processor that is not Intel's.

    MKL is tuned for Intel's. On an AMD EPYC with AVX2 numpy's OpenBLAS takes 0.81 to 0.86 of its time.
    """
    return torch._C.has_mkl and bool(processor := _processor()) and "GenuineIntel" not in processor


@cache
def bf16_multiplies_faster() -> bool:
    """Whether the processor has instructions for products of bf16.

    On an AMD EPYC with AVX-512 these take 0.6 of the time of float32.
    """
    return "avx512_bf16" in _processor()


def _processor() -> str:
    """What Linux says of the processor; empty elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _nominate(chunks: Iterator[tuple[int, Tensor]], width: int) -> tuple[Tensor, Tensor]:
    """[B, W] scores and labels of each query's `width` best in `chunks`; short rows are padded with -inf and -1."""
    best_BW = bar_B = above = torch.empty(0)
    waiting: list[tuple[Tensor, Tensor]] = []
    for start, scores_BC in chunks:
        queries, columns = scores_BC.shape
        if start == 0:
            best_BW = torch.full((queries, width), PAD, device=scores_BC.device)
            bar_B = _first_bar(scores_BC, width)
            above = torch.empty_like(scores_BC, dtype=torch.bool)  # once: new memory costs as much as comparing
        places_F = _true(_exceed(scores_BC, bar_B, above.view(-1)[: scores_BC.numel()].view_as(scores_BC)))
        rows_F = places_F // columns
        labels_F = start + places_F - columns * rows_F
        waiting.append((keys(scores_BC.view(-1)[places_F].float(), labels_F), rows_F))
        if sum(len(rows_F) for _, rows_F in waiting) >= best_BW.numel():
            best_BW, waiting = best_of(best_BW, waiting), []
            bar_B = scores_and_labels(best_BW.amin(1))[0].to(scores_BC.dtype)
    return scores_and_labels(best_of(best_BW, waiting) if waiting else best_BW)


def _first_bar(scores_BC: Tensor, width: int) -> Tensor:
    """[B] a threshold just below the `width`-th largest maximum of parts: at least `width` labels exceed it."""
    nothing = scores_BC.new_tensor(-torch.inf)
    if scores_BC.shape[1] < width:
        return nothing.expand(len(scores_BC))
    maxima_BM = scores_BC
    while (half := maxima_BM.shape[1] // 2) >= max(MAX_MAXIMA, width):
        maxima_BM = torch.maximum(maxima_BM[:, :half], maxima_BM[:, half : 2 * half])
    return torch.nextafter(maxima_BM.topk(width, dim=1, sorted=False).values.amin(1), nothing)


def _exceed(scores_BC: Tensor, bar_B: Tensor, above_BC: Tensor) -> Tensor:
    """Which scores are greater than their query's threshold, written into `above_BC`."""
    if scores_BC.is_cpu and scores_BC.dtype == torch.float32:  # numpy takes a third to a half of torch's time
        np.greater(scores_BC.numpy(), bar_B.numpy()[:, None], out=above_BC.numpy())
        return above_BC
    return torch.gt(scores_BC, bar_B[:, None], out=above_BC)


def _true(entries: Tensor) -> Tensor:
    """The places of the true entries, counted through all rows. Few are: numpy's search skips the others faster."""
    if entries.is_cpu:
        return torch.from_numpy(np.flatnonzero(entries.numpy()))
    return entries.flatten().nonzero().squeeze(1)


def best_of(best_BW: Tensor, waiting: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[B, W] the largest keys of each row, of those in `best_BW` and of the waiting ones, whose rows ascend."""
    counts_PB = torch.stack([rows_F.bincount(minlength=len(best_BW)) for _, rows_F in waiting])
    ends_PB = counts_PB.cumsum(0)
    best_BM = best_BW.new_full((len(best_BW), best_BW.shape[1] + int(ends_PB[-1].max())), PAD)
    best_BM[:, : best_BW.shape[1]] = best_BW
    for (keys_F, rows_F), counts_B, ends_B in zip(waiting, counts_PB, ends_PB, strict=True):
        first_B = best_BW.shape[1] + ends_B - counts_B.cumsum(0)
        best_BM[rows_F, first_B[rows_F] + torch.arange(len(rows_F), device=rows_F.device)] = keys_F
    return best_BM.topk(best_BW.shape[1], dim=1, sorted=False).values


def rank(queries_BD: Tensor, labels_LD: Tensor, nominated_BW: Tensor, k: int) -> Tensor:
    """[B, K] keys of the best `k` nominated labels (-1: none), each pair scored separately in float32."""
    scores_BW = torch.empty_like(nominated_BW, dtype=torch.float32)
    rows = max(1, SIZES[labels_LD.device.type].piece // (nominated_BW.shape[1] * labels_LD.shape[1]))
    parts = (torch.split(matrix, rows) for matrix in (queries_BD, nominated_BW, scores_BW))
    for queries_AD, nominated_AW, scores_AW in zip(*parts, strict=True):
        labels_ED = labels_LD.index_select(0, nominated_AW.clamp(min=0).flatten()).float()
        labels_AWD = labels_ED.view(*nominated_AW.shape, -1)
        torch.sum(labels_AWD.mul_(queries_AD[:, None]), dim=2, out=scores_AW)
    return keys(scores_BW.masked_fill(nominated_BW < 0, -torch.inf), nominated_BW).topk(k, dim=1).values


# The ranking order, by descending score and then ascending label, as one integer key per pair: the high bits are the
# float32 score, the low bits the inverted label id. The k largest keys are the top k, ties included.
_MAGNITUDE = 0x7FFF_FFFF  # all bits of a float but its sign; also the greatest int32, from which ids are subtracted


def keys(scores_NM: Tensor, labels_NM: Tensor) -> Tensor:
    """[N, M] int64 keys of pairs with float32 scores; a score of -inf marks padding, which ranks last."""
    bits_NM = (scores_NM + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0, so that they tie
    return (_ascending(bits_NM).long() << 32) + (_MAGNITUDE - labels_NM)


def scores_and_labels(keys_NM: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [N, M] float32 and labels [N, M] int64 of keys; the label of padding is -1."""
    scores_NM = _ascending((keys_NM >> 32).int()).view(torch.float32)
    labels_NM = _MAGNITUDE - (keys_NM & _MAGNITUDE)
    return scores_NM, labels_NM.masked_fill(scores_NM == -torch.inf, -1)


def _ascending(bits: Tensor) -> Tensor:
    """Float bits as integers in the same order, and back. The bits of negative floats descend and are flipped."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


PAD = int(keys(torch.tensor(-torch.inf), torch.tensor(0)))
