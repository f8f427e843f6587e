"""A vector for each token of a text, in a row of fixed width.

Legend: M texts, W tokens of the longest, H numbers of a state, T token vectors of a text, D dimensions of one.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize, pad


class TokenVectors(nn.Module):
    """Projects the states of a text's first `tokens` tokens to unit vectors; those of missing tokens are zero."""

    def __init__(self, width: int, tokens: int, dimensions: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.project = nn.Linear(width, dimensions, bias=False)

    def forward(self, states_MWH: Tensor, mask_MW: Tensor, ids_MW: Tensor) -> Tensor:  # noqa: ARG002
        """[M, T, D]."""
        vectors_MWD = normalize(self.project(states_MWH[:, : self.tokens]), dim=2) * mask_MW[:, : self.tokens, None]
        return pad(vectors_MWD, (0, 0, 0, self.tokens - vectors_MWD.shape[1]))
