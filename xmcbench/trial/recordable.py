"""Whether what a method wrote into its ledger and curve can stand in a record.

Building the check takes longer than most of a listing: it is for those that run trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from xmcbench.trial.record_fields import Point, SpentFields


class _Recordable(TypedDict):
    spent: SpentFields
    curve: list[Point]


_RECORDABLE = TypeAdapter(_Recordable)


def why_not_recordable(spent: Mapping[str, Any], curve: Sequence[Mapping[str, float]]) -> str:
    """Why a ledger and a curve, which methods write into, cannot stand in a record; empty if they can."""
    try:
        _RECORDABLE.validate_python({"spent": spent, "curve": curve})
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: found {first['input']!r:.80}, {first['msg'].lower()}"
    return ""
