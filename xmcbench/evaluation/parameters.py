"""Parameters of evaluators, which are part of a metric's name: `Head:most=50@5`."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from xmcbench.errors import XMCBenchError

NOT_PARAMETERS = frozenset({"name", "summary", "version", "repeats", "lower_is_better"})
TYPES = (bool, int, float, str)  # of defaults


def parameters(evaluator: Any) -> dict[str, Any]:
    """The parameters of an evaluator and their values: the fields of a dataclass that can be written in a name."""
    if not is_dataclass(evaluator):
        return {}
    settable = {
        field.name for field in fields(evaluator) if field.init and field.default is not MISSING
    } - NOT_PARAMETERS
    values = {field.name: getattr(evaluator, field.name) for field in fields(evaluator) if field.name in settable}
    return {name: value for name, value in values.items() if isinstance(value, TYPES) and not name.startswith("_")}


def with_parameters(evaluator: Any, given: str, metric: str, where: str = "") -> Any:
    """The evaluator with the parameters `given`, as in `most=50:least=2`, for the metric called `metric`.

    A metric has one name: parameters are in the order of the fields, and those at their defaults are left out. Raises
    XMCBenchError for any other name, an unknown parameter or a value of another type.
    """
    known, (family, _, k) = parameters(evaluator), (evaluator.name, "@", metric.rpartition("@")[2])
    start = f"{where}: metric {metric!r}" if where else f"metric {metric!r}"
    if not known:
        raise XMCBenchError(f"{start}: {family} has no parameters, expected {family}@{k}")
    hints, changed = get_type_hints(type(evaluator), include_extras=True), dict[str, Any]()
    for part in given.split(":"):
        name, equals, text = part.partition("=")
        if not equals or name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise XMCBenchError(f"{start}: found {part!r}, expected NAME=VALUE of {', '.join(known)}{meant}")
        try:
            changed[name] = TypeAdapter(hints[name]).validate_strings(text)
        except ValidationError as problem:
            raise XMCBenchError(f"{start}: {name}={text}: {problem.errors()[0]['msg']}") from None
    settings = {name: changed[name] for name in known if changed.get(name, known[name]) != known[name]}
    full = ":".join([family, *(f"{name}={_text(value)}" for name, value in settings.items())])
    if full != metric.rpartition("@")[0]:
        raise XMCBenchError(f"{start}: this metric is called {full}@{k}")
    named = {"name": full} if any(field.name == "name" and field.init for field in fields(evaluator)) else {}
    try:
        return replace(evaluator, **settings, **named)
    except (TypeError, ValueError) as problem:
        raise XMCBenchError(f"{start}: {' '.join(str(problem).split())}") from None


def _text(value: Any) -> str:
    """A value as names have it.

    >>> _text(True), _text(50), _text(0.5), _text("exp")
    ('true', '50', '0.5', 'exp')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
