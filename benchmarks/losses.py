"""Time and memory of each loss, forward and backward, against its plain version on the whole score matrix.

Each case runs in a process of its own, so that its peak memory is its own: what a step takes beside its inputs and
their gradients. Plain versions that would not fit are left out.

    python benchmarks/losses.py --labels 4096 16384 --losses softmax bce

Legend: B queries, S labels, D dimensions, P positive pairs, H hardest negatives.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import psutil
import torch
from report import options, report
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, softplus

from xmcbench import losses
from xmcbench.engine import flops
from xmcbench.engine.losses import Positives

TAU, K, ALPHA, MARGIN, HARDEST = 0.05, 5, 2.0, 0.3, 10
POSITIVES = 5  # of each query
PLAIN_MATRICES = 5  # of B x S float32, that a plain version may hold at once


def matrix(queries_BD: Tensor, labels_SD: Tensor) -> Tensor:
    return queries_BD.float() @ labels_SD.float().T / TAU


def plain_softmax(queries_BD: Tensor, labels_SD: Tensor, true: Positives) -> Tensor:
    log_chances_BS = matrix(queries_BD, labels_SD).log_softmax(1)
    return -(log_chances_BS[true.rows_P, true.columns_P] * true.every()).sum() / len(queries_BD)


def plain_decoupled(queries_BD: Tensor, labels_SD: Tensor, true: Positives) -> Tensor:
    scores_BS = matrix(queries_BD, labels_SD)
    is_true_BS = torch.zeros_like(scores_BS, dtype=torch.bool)
    is_true_BS[true.rows_P, true.columns_P] = True
    negatives_B = scores_BS.masked_fill(is_true_BS, -torch.inf).logsumexp(1)
    return softplus(negatives_B[true.rows_P] - scores_BS[true.rows_P, true.columns_P]).sum() / len(queries_BD)


def plain_bce(queries_BD: Tensor, labels_SD: Tensor, true: Positives) -> Tensor:
    scores_BS = matrix(queries_BD, labels_SD)
    truth_BS = torch.zeros_like(scores_BS)
    truth_BS[true.rows_P, true.columns_P] = 1.0
    return binary_cross_entropy_with_logits(scores_BS, truth_BS, reduction="sum") / len(queries_BD)


def plain_soft_top_k(queries_BD: Tensor, labels_SD: Tensor, true: Positives) -> Tensor:
    """By DEXML's 32 bisections; the threshold's gradient by a Newton step from the root, whose value is nil."""
    x_BS = ALPHA * matrix(queries_BD, labels_SD)
    with torch.no_grad():
        low_B, high_B = -x_BS.amax(1) - 10, -x_BS.amin(1) + 10
        for _ in range(32):
            middle_B = (low_B + high_B) / 2
            too_few_B = torch.sigmoid(x_BS + middle_B[:, None]).sum(1) < K
            low_B, high_B = torch.where(too_few_B, middle_B, low_B), torch.where(too_few_B, high_B, middle_B)
    z_BS = torch.sigmoid(x_BS + low_B[:, None])
    slope_B = (z_BS.detach() * (1 - z_BS.detach())).sum(1)
    y_B = low_B - (z_BS.sum(1) - K) / slope_B
    return softplus(-(x_BS[true.rows_P, true.columns_P] + y_B[true.rows_P])).sum() / len(queries_BD)


def plain_triplet(queries_BD: Tensor, labels_SD: Tensor, true: Positives) -> Tensor:
    scores_BS = queries_BD.float() @ labels_SD.float().T
    drawn_B = true.columns_P[::POSITIVES]
    is_true_BS = torch.zeros_like(scores_BS, dtype=torch.bool)
    is_true_BS[true.rows_P, true.columns_P] = True
    negatives_BH = scores_BS.masked_fill(is_true_BS, -torch.inf).topk(HARDEST, dim=1).values
    return (negatives_BH - scores_BS.gather(1, drawn_B[:, None]) + MARGIN).relu().mean(1).mean()


Loss = Callable[[Tensor, Tensor, Positives], Tensor]
LOSSES: dict[str, dict[str, Loss]] = {
    "softmax": {"ours": lambda q, z, p: losses.pal(q, z, p, temperature=TAU), "plain": plain_softmax},
    "decoupled": {
        "ours": lambda q, z, p: losses.decoupled_softmax(q, z, p, p.every(), temperature=TAU),
        "plain": plain_decoupled,
    },
    "bce": {"ours": lambda q, z, p: losses.binary_cross_entropy(q, z, p, temperature=TAU), "plain": plain_bce},
    "soft-top-k": {
        "ours": lambda q, z, p: losses.soft_top_k(q, z, p, p.every(), k=K, alpha=ALPHA, temperature=TAU),
        "plain": plain_soft_top_k,
    },
    "triplet": {
        "ours": lambda q, z, p: losses.triplet(
            q, z, p, p.weights("drawn"), margin=MARGIN, hardest=HARDEST, over_negatives="mean"
        ),
        "plain": plain_triplet,
    },
}


@dataclass(frozen=True)
class Case:
    """One implementation of a loss, at one size."""

    loss: str
    made: str
    queries: int
    labels: int
    dimensions: int
    dtype: str
    device: str
    threads: int
    repeats: int


def inputs(case: Case) -> tuple[Tensor, Tensor, Positives]:
    generator = torch.Generator().manual_seed(0)
    both = []
    for count in (case.queries, case.labels):
        rows = normalize(torch.randn(count, case.dimensions, generator=generator), dim=1)
        both.append(rows.to(case.device, getattr(torch, case.dtype)).requires_grad_())
    first = torch.randint(case.labels, (case.queries,), generator=generator)[:, None]
    columns_P = ((first + torch.arange(POSITIVES)) % case.labels).sort(1).values.flatten()
    rows_P = torch.arange(case.queries).repeat_interleave(POSITIVES)
    drawn_P = (torch.arange(len(rows_P)) % POSITIVES == 0).float()
    true = Positives(rows_P, columns_P, case.queries, case.labels, {"drawn": drawn_P})
    return both[0], both[1], true.to(case.device)


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(case: Case) -> dict[str, Any]:
    """One case, in a fresh process."""
    torch.set_num_threads(case.threads)
    loss = LOSSES[case.loss][case.made]
    small = Case(**{**case.__dict__, "queries": 8, "labels": 64})
    loss(*inputs(small)).backward()  # what libraries take is not the loss's
    queries, labels, true = inputs(case)
    before = torch.cuda.memory_allocated() if case.device == "cuda" else psutil.Process().memory_info().rss
    wall, cpu = [], []
    with flops.counting() as count:
        for _ in range(case.repeats + 1):
            queries.grad = labels.grad = None
            start, start_cpu = time.perf_counter(), time.process_time()
            value = loss(queries, labels, true)
            value.backward()
            value.item()
            if case.device == "cuda":
                torch.cuda.synchronize()
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
    gradients = sum(x.numel() * x.element_size() for x in (queries, labels))
    return {
        "loss": value.item(),
        "seconds": min(wall[1:]),
        "cpu_seconds": min(cpu[1:]),
        "extra_bytes": max(0, peak_bytes(case.device) - before - gradients),
        "products": count.flops / (case.repeats + 1) / (2 * case.queries * case.labels * case.dimensions),
    }


def fits(case: Case) -> bool:
    free = torch.cuda.mem_get_info()[0] if case.device == "cuda" else psutil.virtual_memory().available
    return PLAIN_MATRICES * case.queries * case.labels * 4 < free


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    for dimensions, dtype, name, labels in product(asked.dimensions, asked.dtypes, asked.losses, asked.labels):
        found = {}
        for made in ("ours", "plain"):
            case = Case(
                name, made, asked.queries, labels, dimensions, dtype, asked.device, asked.threads, asked.repeats
            )
            if made == "ours" or fits(case):
                with context.Pool(1) as fresh:
                    found[made] = fresh.apply(run, (case,))
        ours, plain = found["ours"], found.get("plain")
        row = {"loss": name, "B": asked.queries, "S": labels, "D": dimensions, "dtype": dtype}
        row |= {"products": ours["products"], "s": ours["seconds"], "MiB": ours["extra_bytes"] / 2**20}
        if plain:
            assert abs(plain["loss"] - ours["loss"]) < 1e-3 * abs(plain["loss"]) + 1e-6, (name, plain, ours)
            row |= {"plain s": plain["seconds"], "plain MiB": plain["extra_bytes"] / 2**20}
            row |= {
                "time ratio": ours["seconds"] / plain["seconds"],
                "cpu time ratio": ours["cpu_seconds"] / plain["cpu_seconds"],
                "memory ratio": ours["extra_bytes"] / max(plain["extra_bytes"], 1),
            }
        print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
        yield row


def main() -> None:
    parser = options(
        __doc__, queries=1024, labels=[4096, 16384, 65536, 131072], dimensions=[384, 768],
        threads=torch.get_num_threads(), repeats=(3, "timed runs of a case; the quickest counts"),
    )  # fmt: skip
    parser.add_argument("--losses", choices=sorted(LOSSES), nargs="+", default=list(LOSSES))
    parser.add_argument("--dtypes", choices=["float32", "bfloat16"], nargs="+", default=["float32"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    report("losses", list(measure(asked)), asked.out)


if __name__ == "__main__":
    main()
