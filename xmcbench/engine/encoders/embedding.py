"""Embedding whole collections of texts, without gradients.

Legend: N texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from xmcbench.data.tokens import Tokens
from xmcbench.engine.device import upload
from xmcbench.engine.encoders.encoder import Encoder
from xmcbench.engine.encoders.settings import Precision


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
    with evaluating(encoder), torch.inference_mode(), autocast(device, precision)():
        for group in encoder.micro_batches(tokens.lengths, micro_batch_tokens):
            texts = (upload(array, device) for array in encoder.collate(tokens, group))
            result_ND[upload(group.copy(), device)] = encoder(*texts)
            finished += len(group)
            progress(finished)
    return result_ND
