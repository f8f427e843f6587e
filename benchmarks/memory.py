"""What LoRA, checkpointing and eight bits a weight save, and what rounding does to a loss.

- adapters: one step of a random decoder (Qwen2's layers), whole and with LoRA, with and without checkpointing;
- tables: one-vs-all steps on rows of 768 dimensions in float32, bf16 and e4m3, up to 1,305,265 labels;
- rounding: one-vs-all rows over the static encoder's vectors of a dataset's queries, in float32, in e4m3 on its true
  grid, and in e4m3 by random bits as in public code, from the small weights that 1.3 million labels start with.

Each table has a process of its own. The e4m3 table of 1.3 million labels takes 2 GB and several minutes.

    python benchmarks/memory.py --data DIR                              # DIR: a dataset of short texts
    python benchmarks/memory.py --data DIR --only tables --markdown docs/measurements.md
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
import torch
from report import alone, options, report
from torch import Tensor

from xmcbench.data.formats import read_directory
from xmcbench.data.tokens import Tokens
from xmcbench.engine.encoders.encoder import embed_all
from xmcbench.engine.encoders.settings import EncoderConfig
from xmcbench.engine.encoders.static import StaticEncoder
from xmcbench.engine.encoders.tokenizer import train_tokenizer
from xmcbench.engine.encoders.transformer import TransformerEncoder
from xmcbench.engine.losses import Positives, binary_cross_entropy, cross_entropy_of_rows
from xmcbench.engine.tables import rounding
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig
from xmcbench.engine.training.gradient_cache import GradientCache, TextRows
from xmcbench.trial.budget import forget_peak_memory, peak_memory

DIMENSION, LABELS, PART = 768, 1_305_265, 163_158  # a part: an eighth, where a gradient of all rows fits beside others
BOUND = (6 / (LABELS + DIMENSION)) ** 0.5  # of Xavier's uniform weights
TEXTS, LENGTH, WORDS = 32, 128, 8000
LORA = {"rank": 16}
DECODERS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "LoRA, rank 16": {"lora": LORA},
    "LoRA, frozen in bf16": {"lora": LORA | {"frozen": "bf16"}},
}
STEPS, BATCH, FREQUENT = 80, 256, 4096  # of the loss curves; labels
RATES = (0.05, 1e-5)  # Renee's, and one whose steps are below the smallest of e4m3


def adapters(_: Path) -> Iterator[dict[str, Any]]:
    """Decoders of 8 layers of 256 units; 32 texts of 128 tokens at once."""
    for name, settings in DECODERS.items():
        for checkpointing in (False, True):
            step = decoder_step(settings | {"checkpointing": checkpointing})
            yield {"trained": name, "checkpointing": "yes" if checkpointing else "no"} | step


def decoder_step(settings: dict[str, Any]) -> dict[str, str]:
    """Bytes of weights, of what training keeps of each, and of what the forward pass keeps; CPU seconds."""
    from transformers import AutoModel, Qwen2Config

    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer(["a few words make a vocabulary"]).save_pretrained(folder)
        sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        AutoModel.from_config(Qwen2Config(vocab_size=WORDS, **sizes, **heads)).save_pretrained(folder)
        config = EncoderConfig.model_validate({"name": folder, "pooling": "lasttoken", **settings})
        encoder = TransformerEncoder.build(config, [], 0, Path(folder)).train()
    ids = np.random.default_rng(0).integers(5, WORDS, TEXTS * LENGTH).astype(np.int32)
    tokens = Tokens.from_offsets(ids, np.arange(0, len(ids) + 1, LENGTH))
    limits = {"micro_batch_tokens": TEXTS * LENGTH, "activation_bytes": 2**40}
    cache = GradientCache(encoder, device=torch.device("cpu"), autocast=nullcontext, **limits)
    weights = list(encoder.parameters())
    start = time.process_time()
    cached = cache.embed([TextRows(tokens, np.arange(TEXTS), "query")], 0)
    cached.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
    cached.backward()
    seconds = time.process_time() - start
    trained = sum(weight.nbytes for weight in weights if weight.requires_grad)
    return {
        "weights, MB": f"{sum(weight.nbytes for weight in weights) / 1e6:.1f}",
        "gradient and Adam, MB": f"{3 * trained / 1e6:.1f}",
        "kept by the forward pass, MB": f"{cached.kept_bytes / 1e6:.1f}",
        "CPU seconds": f"{seconds:.1f}",
    }


def tables(_: Path) -> Iterator[dict[str, Any]]:
    """Steps of SGD on all rows, 64 queries each."""
    cases = [("float32", PART), ("bf16", PART), ("e4m3", PART), ("e4m3", LABELS)]
    for dtype, labels in cases:
        yield {"weights": dtype, "labels": f"{labels:,}"} | alone(table_steps, dtype, labels)


def table_steps(dtype: str, labels: int, queries: int = 64) -> dict[str, str]:
    """Bytes of the table and of the process beyond what it had before, per label; seconds of a step."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    queries_BD = torch.randn(queries, DIMENSION, generator=generator)
    true_B = torch.randint(labels, (queries,), generator=generator)
    positives = Positives(torch.arange(queries), true_B, queries, labels)
    step(table(2, dtype), queries_BD, Positives(torch.arange(1), torch.arange(1), queries, 2))  # buffers of libraries
    forget_peak_memory()
    before, start = peak_memory(), time.process_time()
    made = table(labels, dtype)
    filled = time.process_time()
    step(made, queries_BD, positives)
    grown, seconds = peak_memory() - before, time.process_time() - filled
    return {
        "weights, bytes a label": f"{made.weight.nbytes / labels:,.0f}",
        "peak of a step, bytes a label": f"{grown / labels:,.0f}",
        "peak of a step, GB": f"{grown / 1e9:.2f}",
        "CPU seconds to fill": f"{filled - start:.0f}",
        "of a step": f"{seconds:.1f}",
    }


def table(labels: int, dtype: Any, dimension: int = DIMENSION) -> LabelTable:
    """Rows that start as those of 1.3 million labels would."""
    made = LabelTable(torch.arange(labels), dimension, TableConfig(optimizer="sgd", dtype=dtype), 0)
    made.fill(lambda block_ND, generator: block_ND.uniform_(-BOUND, BOUND, generator=generator))
    return made


def step(rows: LabelTable, queries_BD: Tensor, positives: Positives, rate: float = 0.05) -> float:
    """The loss, before a step of SGD on the sum over queries (Renee)."""
    queries_BD = queries_BD.detach().requires_grad_()
    if rows.config.dtype == "e4m3":
        loss = cross_entropy_of_rows(queries_BD, rows, positives)
    else:
        loss = binary_cross_entropy(queries_BD, rows(), positives, temperature=1.0)
    (loss * len(queries_BD)).backward()  # type: ignore[no-untyped-call]
    rows.step(rate)
    return loss.item()


def random_bits(values_MD: Tensor, row_ids_M: Tensor, key: int) -> Tensor:
    """Round as public code does: 20 random bits are added to a float32, which is cut to 3 bits and converted."""
    bits_MD = rounding.noise(row_ids_M, values_MD.shape[1], key, 20).add_(values_MD.view(torch.int32))
    return bits_MD.bitwise_and_(-(1 << 20)).view(torch.float32).to(torch.float8_e4m3fn)


def loss_curves(data: Path) -> Iterator[dict[str, Any]]:
    """The mean size of the weights at first, and mean losses of ten steps; the most frequent labels."""
    parts = read_directory(data)
    with tempfile.TemporaryDirectory() as folder:
        encoder = StaticEncoder.build(EncoderConfig(name="static"), parts.train.texts, 0, Path(folder)).eval()
        tokens = encoder.tokenizer.tokens(parts.train.texts, 32)
        queries_ND = 8 * embed_all(encoder, tokens, precision="float32", micro_batch_tokens=2**16)
    counts_L = np.bincount(parts.train.targets.indices, minlength=parts.train.targets.shape[1])
    targets = parts.train.targets.tocsr()[:, np.argsort(-counts_L, kind="stable")[:FREQUENT]]
    for rate, (name, (dtype, rounds)) in product(RATES, ROUNDINGS.items()):
        with patch.object(rounding, "stochastic_e4m3", rounds):
            yield {"rate": f"{rate:g}", "weights": name} | curve(queries_ND, targets, dtype, rate)


def curve(queries_ND: Tensor, targets: sp.csr_array, dtype: str, rate: float) -> dict[str, str]:
    rows, losses = table(FREQUENT, dtype, queries_ND.shape[1]), []
    size = float(rows.weight.float().abs().mean())
    for number in range(STEPS):
        some = np.sort(np.random.default_rng(number).choice(len(queries_ND), BATCH, replace=False))
        pairs = targets[some].tocoo()
        places = (torch.from_numpy(ids.astype(np.int64)) for ids in (pairs.row, pairs.col))
        losses.append(step(rows, queries_ND[some], Positives(*places, BATCH, FREQUENT), rate))
    means = {f"loss, steps to {last}": f"{np.mean(losses[last - 10 : last]):.0f}" for last in (10, 20, 40, STEPS)}
    return {"mean size at first": f"{size:.5f}"} | means


ROUNDINGS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "float32": ("float32", rounding.stochastic_e4m3),
    "e4m3, true grid": ("e4m3", rounding.stochastic_e4m3),
    "e4m3, random bits": ("e4m3", random_bits),
}
SUBJECTS = {"adapters": adapters, "tables": tables, "rounding": loss_curves}


def main() -> None:
    parser = options(__doc__, only=SUBJECTS)
    parser.add_argument("--data", type=Path, required=True, help="a dataset of short texts, in any layout that is read")
    asked = parser.parse_args()
    for subject in asked.only:
        report(f"memory_{subject}", list(SUBJECTS[subject](asked.data.absolute())), asked)


if __name__ == "__main__":
    main()
