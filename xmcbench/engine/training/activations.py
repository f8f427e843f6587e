"""The memory that a forward pass keeps for its backward pass: counted, not estimated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class SavedBytes(saved_tensors_hooks):
    """Counts what graphs made within this context keep alive, in `total` bytes; may be entered again to count on.

    Parameters are there anyway and do not count; what several operations keep counts once. The graphs have to outlive
    the count, because storages are told apart by their addresses.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, compiled: bool = False) -> None:
        self.total = 0
        self._seen = {parameter.untyped_storage()._cdata for parameter in parameters}
        note: Any = self._note
        if compiled:  # the compiler would trace the count, and recompile whenever it changes
            note = torch.compiler.disable(note)  # type: ignore[no-untyped-call]
        super().__init__(note, lambda tensor: tensor)

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.total += storage.nbytes()
        return tensor.detach()  # an operation that kept its own result would keep itself alive
