"""What all text encoders have: one vector per text, a tokenizer, and a cost per text; and the embedding of whole
collections of texts, without gradients.

Legend: N texts, M texts of a micro-batch, H or D dimensions of an embedding.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, normalize
from torch.utils.flop_counter import FlopCounterMode

from xmcbench.data.tokens import Tokens, micro_batches
from xmcbench.engine.device import upload
from xmcbench.engine.encoders.own_modules import PROMPTS, SentenceModule
from xmcbench.engine.encoders.settings import MODULES, EncoderConfig, Precision
from xmcbench.engine.encoders.tokenizer import TextTokenizer
from xmcbench.engine.flops import by_formula
from xmcbench.engine.passes import stop_point
from xmcbench.errors import XMCBenchError
from xmcbench.trial.meter import uncounted


@dataclass(frozen=True)
class TextFlops:
    """Floating-point operations of a forward pass over a text of n tokens: constant + linear n + square n^2."""

    constant: int
    linear: int
    square: int

    @classmethod
    def of(cls, one: int, two: int, three: int) -> TextFlops:
        """The polynomial through the operations of texts of one, two and three tokens."""
        square = (three - 2 * two + one) // 2
        linear = two - one - 3 * square
        return cls(one - linear - square, linear, square)

    def __call__(self, lengths_N: np.ndarray) -> int:
        """Operations over texts of these lengths in tokens, without padding."""
        lengths_N = lengths_N.astype(np.int64)
        return int(self.constant * len(lengths_N) + self.linear * lengths_N.sum() + self.square * (lengths_N**2).sum())


class Encoder(nn.Module, ABC):
    """A text encoder: what pools token vectors to one vector per text, its dropout, normalisation and tokenizer.

    `tokenizer` is that of queries. `prompts` are what a model wants before a `query` and before a `document`, a label.
    """

    dimension: int  # numbers of an embedding
    pooling: nn.Module | None  # of the method, in place of the settings'

    def __init__(self, config: EncoderConfig, tokenizer: TextTokenizer, prompts: dict[str, str] | None = None) -> None:
        super().__init__()
        self.config, self.pooling = config, None
        self.prompts = prompts or {}
        self.tokenizer = tokenizer.after(self.prompts.get("query", ""))
        self.label_tokenizer = tokenizer.after(self.prompts.get("document", ""))

    def pool_with(self, pooling: nn.Module) -> None:
        """From now on a text's embedding is what `pooling` makes of its token states (`DualEncoder.build_pooling`).

        Raises XMCBenchError where embeddings of texts of two and of three tokens have different widths.
        """
        device, widths = next(self.parameters()).device, []
        with evaluating(pooling), torch.no_grad(), by_formula(), uncounted():
            for tokens in (2, 3):
                texts = (
                    torch.ones(1, tokens, self.dimension),
                    torch.ones(1, tokens).bool(),
                    torch.zeros(1, tokens).long(),
                )
                pooled = pooling.to(device)(*(tensor.to(device) for tensor in texts))
                widths.append(pooled.flatten(1).shape[1])
        if widths[0] != widths[1]:
            found = f"{widths[0]} numbers for two tokens and {widths[1]} for three"
            raise XMCBenchError(f"{type(pooling).__name__}: expected embeddings of one width, found {found}: pad them")
        self.pooling, self.dimension = pooling, widths[0]

    def pooled(self, states_MWH: Tensor, mask_MW: Tensor, ids_MW: Tensor) -> Tensor:
        """[M, D] in float32: what the method's pooling makes of the states of real tokens, where `mask_MW` is true."""
        assert self.pooling is not None
        embeddings: Tensor = self.pooling(states_MWH.float(), mask_MW.bool(), ids_MW)
        return embeddings.flatten(1).float()

    def micro_batches(self, lengths_N: np.ndarray, token_budget: int) -> list[np.ndarray]:
        """Groups of similar length, of at most so many tokens with padding."""
        return micro_batches(lengths_N, token_budget)

    def collate(self, tokens: Tokens, rows_M: np.ndarray) -> tuple[np.ndarray, ...]:
        """Token ids and mask [M, W]; no mask where nothing is padded."""
        ids_MW, mask_MW = tokens.padded(rows_M, self.tokenizer.pad_id)
        return (ids_MW,) if mask_MW.all() else (ids_MW, mask_MW)

    @abstractmethod
    def forward(self, *texts: Tensor) -> Tensor:
        """Embeddings [M, H] in float32 of the texts that `collate` gave."""

    @cached_property
    def flops(self) -> TextFlops:
        """Floating-point operations of a forward pass over texts of given lengths in tokens, without padding.

        Counted for 1, 2 and 3 tokens: matrices applied to each token give the linear part, the products of attention
        the square one. A training step is three of them: the backward pass multiplies twice what the forward pass does
        once. A second forward pass, the price of a small memory, is not counted: a method spends the same everywhere.
        """
        device, counts = next(self.parameters()).device, []
        for tokens in (1, 2, 3):
            ids_MW = torch.full((1, tokens), self.tokenizer.pad_id + 1, device=device)
            # Plain attention: the counter does not know every fused one.
            with torch.compiler.set_stance("force_eager"), sdpa_kernel(SDPBackend.MATH):
                counts.append(products_of(self, ids_MW))
        return TextFlops.of(*counts)

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write weights and tokenizer."""

    @abstractmethod
    def sentence_modules(self, max_length: int) -> list[SentenceModule]:
        """The modules of sentence-transformers that compute the pooled vectors from what `save` wrote.

        Texts are cut at `max_length` tokens.
        """

    def write_sentence_layout(self, directory: Path, max_length: int) -> None:
        """Make `SentenceTransformer(directory)` give the embeddings of what `save` wrote there."""
        modules = self.sentence_modules(max_length)
        if self.config.normalize and modules[-1].kind != "Normalize":
            modules.append(SentenceModule("Normalize", f"{len(modules)}_Normalize"))  # no settings, so no folder
        index = [
            {"idx": i, "name": str(i), "path": module.folder, "type": f"sentence_transformers.models.{module.kind}"}
            for i, module in enumerate(modules)
        ]
        settings: dict[str, Any] = {"model_type": "SentenceTransformer", "similarity_fn_name": "dot"}
        if self.prompts:
            settings["prompts"] = self.prompts
        files = {MODULES: index, PROMPTS: settings}
        files |= {
            f"{module.folder}/{name}".lstrip("/"): what for module in modules for name, what in module.files.items()
        }
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def trained_tensors(self) -> dict[str, Tensor]:
        """What training changes, by name: all but frozen weights."""
        frozen = {name for name, parameter in self.named_parameters() if not parameter.requires_grad}
        return {name: tensor for name, tensor in self.state_dict().items() if name not in frozen}

    def check_length(self, tokens: int) -> None:
        """Raise XMCBenchError where the encoder cannot read texts of that many tokens."""

    def finished(self, pooled_MH: Tensor) -> Tensor:
        """Pooled vectors as embeddings: after dropout, and of length 1 unless the settings say otherwise."""
        pooled_MH = dropout(pooled_MH, self.config.dropout, self.training)
        return normalize(pooled_MH, dim=1) if self.config.normalize else pooled_MH


def products_of(module: nn.Module, *inputs: Tensor) -> int:
    """The operations of matrix products in a forward pass of the module, without dropout; no trial counts it."""
    aside = evaluating(module), torch.no_grad(), by_formula(), uncounted(), _frozen(module)
    with ExitStack() as stack:
        for context in aside:
            stack.enter_context(context)
        counter = stack.enter_context(FlopCounterMode(display=False))
        module(*inputs)
    return int(counter.get_total_flops())


@contextmanager
def _frozen(encoder: nn.Module) -> Iterator[None]:
    """No weight has a gradient in the block: torch's counter fails on a part of a weight that is given to a module, as
    DeBERTa's vectors of places are."""
    trained = [weight for weight in encoder.parameters() if weight.requires_grad]
    try:
        for weight in trained:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


def autocast(device: torch.device, precision: Precision) -> Callable[[], AbstractContextManager[object]]:
    """A context in which matrix products run in bf16 while weights stay float32; nothing for float32."""
    if precision == "float32":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16)


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Modules in evaluation mode (no dropout) within the block, then in their previous mode."""
    modes = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.train(mode)


def embed_all(
    encoder: Encoder,
    tokens: Tokens,
    *,
    precision: Precision,
    micro_batch_tokens: int,
    progress: Callable[[int], object] = int,
) -> Tensor:
    """[N, D] float32 embeddings, dropout off, on the encoder's device; `progress` gets the number of texts so far."""
    device = next(encoder.parameters()).device
    result_ND, finished = torch.empty((len(tokens), encoder.dimension), device=device), 0
    # Autocast casts a weight once per context.
    with evaluating(encoder), torch.inference_mode(), by_formula(), autocast(device, precision)():
        for group in encoder.micro_batches(tokens.lengths, micro_batch_tokens):
            texts = (upload(array, device) for array in encoder.collate(tokens, group))
            result_ND[upload(group.copy(), device)] = encoder(*texts)
            finished += len(group)
            progress(finished)
            stop_point()
    return result_ND


def limit_tokens(directory: Path, max_length: int) -> None:
    """Tell who opens the saved tokenizer of `directory`, if there is one, at how many tokens texts were cut."""
    settings = directory / "tokenizer_config.json"
    if settings.exists():
        content = json.loads(settings.read_text(encoding="utf-8")) | {"model_max_length": max_length}
        settings.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
