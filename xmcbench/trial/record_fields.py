"""The types of a record's fields: finite, bounded, of known names. What has these types can be shown on a board.

The types hold what a reader computes with. Whether a record is true, and fit to be accepted, is for
`xmcbench/reporting/acceptance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, BaseModel, Field, GetPydanticSchema
from typing_extensions import TypedDict

LARGEST = 10**24  # of any amount
DEPTH = 20  # of nested settings

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
Amount = Annotated[float, Field(strict=True, ge=0, le=LARGEST, allow_inf_nan=False)]
# A sum of fractions may be a rounding error outside 0..1.
Fraction = Annotated[float, Field(strict=True, ge=-1e-9, le=1 + 1e-9, allow_inf_nan=False)]
Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class Frozen(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A model that cannot be changed, with fields of its names only."""


def _checked(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree, if it holds JSON types, finite numbers and at most `DEPTH` levels. Raises ValueError."""
    for value, depth in walk(tree):
        if depth > DEPTH:
            raise ValueError(f"found more than {DEPTH} levels")
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:  # which NaN fails too
            raise ValueError(f"found a number that is not within {-LARGEST:g} to {LARGEST:g}")
        if not isinstance(value, str | int | float | Mapping | list | tuple | None):
            raise ValueError(f"found {type(value).__name__}, expected a type that JSON has")
        if isinstance(value, str) and not value.isprintable():
            value.encode()  # half a surrogate pair cannot be written; UnicodeEncodeError is a ValueError
    return tree


def walk(value: Any, depth: int = 1) -> Iterator[tuple[Any, int]]:
    """A value and all values inside it with their depths, names of mappings included."""
    yield value, depth
    if depth > DEPTH:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name, depth
            yield from walk(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from walk(inner, depth + 1)


Tree = Annotated[dict[str, Any], AfterValidator(_checked)]


# `Frozen` refuses other names in these too: pydantic passes a model's settings on to mappings without their own.
class Git(TypedDict, total=False):
    """A commit, and whether the files differ from it."""

    commit: str
    dirty: bool


CODE_FORM = 2  # how digests of code are made (`xmcbench.plugins.code`); those of another form are not comparable


class PluginCode(TypedDict):
    """The code of the plugins that a result depends on (`xmcbench.trial.provenance`)."""

    digest: str
    form: NotRequired[Count]  # absent: 1, names and bytes of the files
    git: Git


class ProvenanceFields(TypedDict, total=False):
    """The code, versions, hardware and command of a trial (`xmcbench.trial.provenance`)."""

    git: Git
    plugin: PluginCode
    versions: dict[str, str]
    python: str
    platform: str
    cpu: str
    cores: Count
    cores_usable: Count
    memory_bytes: Count
    host: str
    command: list[str]
    torch_threads: Count
    gpu: str
    gpus: Count
    cuda: str | None
    checks: dict[str, str]
    predictions: str  # name of the file that imported predictions came from


# Plain mappings for readers, which look names up at run time; checked like the classes.
Provenance = Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(ProvenanceFields))]
Point = dict[str, Number]
