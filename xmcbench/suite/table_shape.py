"""The tables that a suite asks for. Views read this without loading the rest of a suite."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TableShape(BaseModel):
    """The key `tables.TITLE` of a suite: which cells make a table, and in which columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: list[str] | None = Field(None, min_length=1, description="labels of the suite's methods; null: all")
    columns: list[str] = Field(min_length=1, description="metrics, settings, or columns of a leaderboard")
    beside: str = Field("", description="the paper's table whose rows are shown below, as in `dexml Table 3`")
