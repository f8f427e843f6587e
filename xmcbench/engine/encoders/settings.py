"""Settings of encoders. Importing them costs no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Precision = Literal["float32", "bf16"]


class EncoderConfig(BaseModel):
    """Which encoder, and how its token vectors become one embedding. A bare name stands for `{name: ...}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field("distilbert-base-uncased", description="tiny, nano, minilm, or a Hugging Face id or path")
    pooling: Literal["mean", "cls"] = Field(
        "mean", description="mean of the token vectors, or the vector of the first token"
    )
    normalize: bool = Field(default=True, description="scale embeddings to length 1")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="on the pooled vector, before it is normalised")
    hidden_dropout: float | None = Field(
        default=None, ge=0, lt=1, description="in the transformer; null: the model's own (0.1 for tiny and nano)"
    )
    compile: bool = Field(default=False, description="compile the transformer (torch.compile; needs a C++ compiler)")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
