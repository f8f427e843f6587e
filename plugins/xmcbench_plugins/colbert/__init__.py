"""ColBERT: late interaction of the tokens of a query with those of a label (Khattab and Zaharia, SIGIR 2020).

Legend: B queries, S labels of the pool (of this worker), T and U tokens of a query and of a label, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from xmcbench import EmbeddingMethod, MethodInfo, hookimpl, losses, sampling

if TYPE_CHECKING:
    from torch import Tensor, nn


class ColBERT(EmbeddingMethod):
    """A label's score is the sum, over the query's tokens, of the largest cosine with a token of the label."""

    name = "colbert"
    info = MethodInfo(
        summary="late interaction: each token of a query is compared with its nearest token of a label",
        citation="Khattab and Zaharia, ColBERT: Efficient and Effective Passage Search via Contextualized Late "
        "Interaction over BERT, SIGIR 2020",
        needs=("label texts",),
    )

    class Config(EmbeddingMethod.Config):
        positives: losses.TrainedPositives = "drawn"
        temperature: float = Field(1.0, gt=0, description="of the softmax; scores are divided by it")
        tokens: int = Field(32, gt=0, description="first tokens of a text that have vectors; the others are only read")
        dimensions: int = Field(32, gt=0, description="of a token's vector")

    config: ColBERT.Config

    def build_pooling(self, width: int) -> nn.Module:
        from xmcbench_plugins.colbert.token_vectors import TokenVectors

        return TokenVectors(width, self.config.tokens, self.config.dimensions)

    def score(self, queries_BV: Tensor, labels_SV: Tensor) -> Tensor:
        """MaxSim (Eq. 3) of rows that hold a vector for each token. A missing token of a query adds nothing."""
        queries_BTD, labels_SUD = (rows.unflatten(1, (-1, self.config.dimensions)) for rows in (queries_BV, labels_SV))
        cosines = queries_BTD.flatten(0, 1) @ labels_SUD.flatten(0, 1).T
        cosines_BTSU = cosines.view(*queries_BTD.shape[:2], *labels_SUD.shape[:2])
        missing_SU = ~labels_SUD.any(dim=2)
        return cosines_BTSU.masked_fill(missing_SU, -1.0).amax(3).sum(1)

    def sampler(self, train: Any, seed: int) -> sampling.Sampler:
        return sampling.Sampler(train, batch_size=self.config.batch_size, seed=seed)

    def loss(self, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
        """The softmax over the labels of the batch."""
        weights_P = batch.positives.weights(self.config.positives)
        return losses.softmax(queries_BD, labels_SD, batch.positives, weights_P, temperature=self.config.temperature)


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(ColBERT)
