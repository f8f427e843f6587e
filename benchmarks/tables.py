"""Time and memory of a step of a label table, compared with torch's optimisers on the whole table.

A step looks some rows up, gets their gradients and updates them; there is no loss. All variants take turns in one
process, and the shortest time of each counts. `--rows 1300000` needs 10 GB for torch's dense optimiser.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from report import options, report
from torch import Tensor, nn

from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig

Step = Callable[[], int]  # returns the bytes that weights and optimiser state hold
BASELINE = "torch SparseAdam"
TABLES: dict[str, dict[str, Any]] = {
    "adam float32": {},
    "adam bf16": {"dtype": "bf16"},
    "adam bf16-compensated": {"dtype": "bf16-compensated"},
    "momentum float32": {"optimizer": "sgd", "momentum": 0.9},
    "sgd bf16": {"optimizer": "sgd", "dtype": "bf16"},
}


def table_step(rows: int, dimension: int, touched: Tensor, gradient: Tensor, settings: dict[str, Any]) -> Step:
    table = LabelTable(torch.arange(rows), dimension, TableConfig(**settings), seed=0).to(gradient.device)

    def step() -> int:
        leaf = table(touched)
        leaf.grad = gradient
        table.step(1e-3)
        return sum(tensor.nbytes for tensor in table.state_dict().values())

    return step


def torch_step(rows: int, dimension: int, touched: Tensor, gradient: Tensor, sparse: bool, **settings: Any) -> Step:
    embedding = nn.Embedding(rows, dimension, sparse=sparse, device=gradient.device)
    with torch.no_grad():
        embedding.weight.zero_()
    kind = torch.optim.SparseAdam if sparse else torch.optim.AdamW
    optimizer: torch.optim.Optimizer = kind(embedding.parameters(), lr=1e-3, **settings)

    def step() -> int:
        embedding(touched).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state[embedding.weight]
        return sum(t.nbytes for t in [embedding.weight, *state.values()] if isinstance(t, Tensor))

    return step


def ways() -> dict[str, Callable[..., Step]]:
    """The ways to do a step, by name."""
    return {
        BASELINE: partial(torch_step, sparse=True),
        "torch AdamW, dense, fused": partial(torch_step, sparse=False, fused=True),
        **{f"LabelTable {name}": partial(table_step, settings=settings) for name, settings in TABLES.items()},
    }


def least_time(step: Step, seconds: float, device: torch.device) -> float:
    """Seconds of the quickest step of those that fit into `seconds`."""
    step()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
    return least


def measure(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(asked.threads)
    device = torch.device(asked.device)
    generator = torch.Generator().manual_seed(0)
    touched = torch.randperm(asked.rows, generator=generator)[: asked.touched].to(device)
    gradient = torch.randn(len(touched), asked.dimension, generator=generator).to(device)
    seconds = dict.fromkeys(ways(), float("inf"))
    held = dict.fromkeys(ways(), 0)
    for _ in range(asked.rounds):
        for name, make in ways().items():
            step = make(asked.rows, asked.dimension, touched, gradient)
            seconds[name] = min(seconds[name], least_time(step, asked.seconds, device))
            held[name] = step()
            del step  # before the next table is made: two of the largest may not fit
    for name in seconds:
        yield {
            "step": name,
            "rows": asked.rows,
            "touched": asked.touched,
            "dimension": asked.dimension,
            "ms": seconds[name] * 1e3,
            "times SparseAdam": seconds[name] / seconds[BASELINE],
            "bytes a row": held[name] / asked.rows,
        }


def main() -> None:
    parser = options(
        __doc__, rows=(131_072, "of the table"), touched=(4096, "rows a step uses"), dimension=384,
        seconds=(1.0, "for each way and round; the quickest step counts"), rounds=(3, "in which all ways take turns"),
        threads=torch.get_num_threads(),
    )  # fmt: skip
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    report("tables", list(measure(asked)), asked.out)


if __name__ == "__main__":
    main()
