"""Search: each backend against the bare matrix products, over unit vectors around random centres.

Products are what no exact search can do without: every query with every label, in chunks, into memory that is there
already. "torch.topk" is products and `torch.topk`, the plain way; it settles no ties. Every case is repeated, in turns,
and its least time counts. A graph is built over fewer labels (`--graph-labels`), and its row says how many. Torch and
faiss bring a thread pool each: let neither spin long while it waits, as the harness has it for its workers.

    GOMP_SPINCOUNT=3000 python benchmarks/search.py --labels 131072 --queries 2048 --dimensions 384 768
    GOMP_SPINCOUNT=3000 python benchmarks/search.py --labels 16384 --queries 256 --graph-labels 4096  # a quick look
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from report import least_seconds, options, report
from threadpoolctl import threadpool_limits
from torch import Tensor

from xmcbench.engine.search import HNSW, ExactIndex, FaissIndex, exact
from xmcbench.trial.predictions import Predictions


def vectors(number: int, dimension: int, centres_CD: Tensor, seed: int) -> Tensor:
    """[number, dimension] unit vectors around the centres."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randint(len(centres_CD), (number,), generator=generator)
    noise = torch.randn(number, dimension, generator=generator)
    return torch.nn.functional.normalize(centres_CD[centre] + noise, dim=1)


def chunks(queries_ND: Tensor, labels_LD: Tensor) -> Iterator[Tensor]:
    """The scores of each chunk, in memory that is used again."""
    sizes = exact.SIZES[labels_LD.device.type]
    scores = torch.empty(sizes.rows * sizes.columns, dtype=labels_LD.dtype, device=labels_LD.device)
    for queries_BD in torch.split(queries_ND, sizes.rows):
        for labels_CD in torch.split(labels_LD, sizes.columns):
            shape = len(queries_BD), len(labels_CD)
            yield torch.mm(queries_BD, labels_CD.T, out=scores[: shape[0] * shape[1]].view(shape))


def products(queries_ND: Tensor, labels_LD: Tensor) -> None:
    for _ in chunks(queries_ND, labels_LD):
        pass


def plain(queries_ND: Tensor, labels_LD: Tensor, k: int) -> None:
    """Products and `torch.topk`: of each chunk, then of what the chunks gave."""
    whole = range(0, len(labels_LD), exact.SIZES[labels_LD.device.type].columns)
    found = []
    for scores_BC in chunks(queries_ND, labels_LD):
        found.append(scores_BC.topk(min(k, scores_BC.shape[1]), dim=1).values)
        if len(found) == len(whole):
            torch.cat(found, dim=1).topk(k, dim=1)
            found = []


def recall(found: Predictions, best: Predictions) -> float:
    """The share of the best labels that were found."""
    same = [len(np.intersect1d(*rows)) for rows in zip(found.indices, best.indices, strict=True)]
    return float(np.mean(same)) / best.k


def exact_rows(queries_ND: Tensor, labels_LD: Tensor, k: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Exact search and flat faiss, float32 against float32 products and bf16 against bf16 ones."""
    start = time.perf_counter()
    flat = FaissIndex(labels_LD)
    built = {"faiss-flat float32": time.perf_counter() - start}
    best = ExactIndex(labels_LD).top_k(queries_ND, k)
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        typed = queries_ND.to(dtype), labels_LD.to(dtype)
        start = time.perf_counter()
        index = ExactIndex(labels_LD, precision)
        built[f"exact {precision}"] = time.perf_counter() - start
        search = {f"exact {precision}": index.top_k}
        if precision == "float32":
            search["faiss-flat float32"] = flat.top_k
        cases: dict[str, Callable[[], Any]] = {f"products {precision}": lambda typed=typed: products(*typed)}
        cases[f"torch.topk {precision}"] = lambda typed=typed: plain(*typed, k)
        cases |= {name: lambda run=run: run(queries_ND, k) for name, run in search.items()}
        seconds = least_seconds(cases, repeats)
        for name in cases:
            yield {
                **what(name, queries_ND, labels_LD),
                "build s": built.get(name),
                "search s": seconds[name],
                "to products": seconds[name] / seconds[f"products {precision}"],
                "queries/s": len(queries_ND) / seconds[name],
                "recall": recall(search[name](queries_ND, k), best) if name in search else None,
            }


def graph_row(queries_ND: Tensor, labels_LD: Tensor, k: int, repeats: int, settings: HNSW) -> dict[str, Any]:
    """A graph, against the bare products over the same labels."""
    start = time.perf_counter()
    graph = FaissIndex(labels_LD, settings)
    built = time.perf_counter() - start
    cases = {"products": lambda: products(queries_ND, labels_LD), "graph": lambda: graph.top_k(queries_ND, k)}
    seconds = least_seconds(cases, repeats)
    return {
        **what(f"faiss-hnsw {settings.m}/{settings.ef_construction}/{settings.ef_search}", queries_ND, labels_LD),
        "build s": built,
        "search s": seconds["graph"],
        "to products": seconds["graph"] / seconds["products"],
        "queries/s": len(queries_ND) / seconds["graph"],
        "recall": recall(graph.top_k(queries_ND, k), ExactIndex(labels_LD).top_k(queries_ND, k)),
    }


def what(name: str, queries_ND: Tensor, labels_LD: Tensor) -> dict[str, Any]:
    return {"case": name, "L": len(labels_LD), "N": len(queries_ND), "D": labels_LD.shape[1]}


def main() -> None:
    parser = options(
        __doc__, labels=131_072, queries=2_048, dimensions=[384, 768], k=100,
        graph_labels=(16_384, "0 leaves the graph out"), repeats=3, threads=torch.get_num_threads(),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )  # fmt: skip
    parser.add_argument("--graph", type=int, nargs=3, default=[32, 200, 200], metavar=("M", "EF_BUILD", "EF_SEARCH"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    threadpool_limits(args.threads)  # of numpy and faiss
    rows = []
    for dimension in args.dimensions:
        centres_CD = torch.randn(2_000, dimension, generator=torch.Generator().manual_seed(0))
        labels_LD = vectors(args.labels, dimension, centres_CD, 1).to(args.device)
        queries_ND = vectors(args.queries, dimension, centres_CD, 2).to(args.device)
        rows += exact_rows(queries_ND, labels_LD, args.k, args.repeats)
        if args.graph_labels:
            few_LD = labels_LD[: args.graph_labels]
            rows.append(graph_row(queries_ND, few_LD, args.k, args.repeats, HNSW(*args.graph)))
    report("search", rows, args.out)


if __name__ == "__main__":
    main()
