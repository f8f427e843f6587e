"""Settings of label tables. Importing them costs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from xmcbench.trial.record_fields import Frozen

if TYPE_CHECKING:
    from xmcbench.engine.tables.row_optimizers import RowOptimizer


class TableConfig(Frozen):
    """The optimiser and the storage of a table of label vectors."""

    optimizer: Literal["adam", "sgd", "none"] = Field("adam", description="none: the method itself writes the rows")
    learning_rate: float = Field(1e-3, gt=0, description="peak of the schedule, which is that of the encoder")
    weight_decay: float = Field(0.0, ge=0, description="of the rows that a step updates; sgd adds it to the gradient")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd; 0 keeps no state")
    dtype: Literal["float32", "bf16", "e4m3"] = Field(
        "float32", description="bf16 and e4m3 (8 bits, without scaling) round stochastically"
    )

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> TableConfig:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError("momentum needs optimizer: sgd")
        return self

    def build_optimizer(self) -> RowOptimizer:
        """The optimiser of the table's rows."""
        from xmcbench.engine.tables.row_optimizers import MomentumSGD, RowAdam

        if self.optimizer == "adam":
            return RowAdam(self.weight_decay)
        return MomentumSGD(self.momentum, self.weight_decay)  # which keeps no state for what does not learn
