"""The base of a method's settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings of a method, or of a part of one: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def unused(self) -> frozenset[str]:
        """Settings without effect, given the others: a suite may not set them, and a sweep leaves them out."""
        return frozenset()
