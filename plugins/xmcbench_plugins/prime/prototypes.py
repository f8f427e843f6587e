"""The label prototype network.

Legend: S labels, T tokens of a label's bag, D dimensions, F width of the layer.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, linear, normalize, scaled_dot_product_attention


class Prototypes(nn.Module):
    """The label prototype network: a transformer layer over a label's bag of vectors, then the mean."""

    def __init__(self, dimension: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        # The bag has no order, and so the layer no positions.
        self.layer = nn.TransformerEncoderLayer(dimension, 1, feedforward, dropout, "gelu", batch_first=True)

    def forward(self, bag_STD: Tensor) -> Tensor:
        """[S, D], of length 1."""
        layer, attention = self.layer, self.layer.self_attn
        # The layer's own forward, written out: `row_dropout` does not reach into nn.MultiheadAttention.
        query, key, value = linear(bag_STD, attention.in_proj_weight, attention.in_proj_bias)[:, None].chunk(3, dim=-1)
        rate = attention.dropout if self.training else 0.0
        attended_STD = attention.out_proj(scaled_dot_product_attention(query, key, value, dropout_p=rate)[:, 0])
        bag_STD = layer.norm1(bag_STD + layer.dropout1(attended_STD))
        expanded_STF = layer.dropout(gelu(layer.linear1(bag_STD)))
        bag_STD = layer.norm2(bag_STD + layer.dropout2(layer.linear2(expanded_STF)))
        return normalize(bag_STD.mean(1), dim=1)
