"""Names and families of methods, as papers and figures have them; plugins with results of others give them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, get_args

from xmcbench.errors import shown
from xmcbench.plugins.registry import Registry, calling, registry
from xmcbench.reporting.text_table import folded
from xmcbench.trial.record_fields import Frozen

Family = Literal[
    "softmax dual encoder",
    "triplet dual encoder",
    "linear",
    "with classifier",
    "text match",
    "second stage",
    "no annotations",
    "other",
]
FAMILIES: tuple[Family, ...] = get_args(Family)  # each has a colour in figures and on the page, in this order


class NamedMethod(Frozen):
    """A method by its name in papers."""

    name: str
    family: Family = "other"
    plugin: str = ""  # rows of this plugin are variants of the method if no method lists their label
    of: str = ""  # the plugin that has these labels, where the method has no plugin of its own
    labels: tuple[str, ...] = ()  # of rows with the recommended settings, the best known first
    adds: tuple[tuple[str, str], ...] = ()  # labels, and what each adds to the name
    paper: str = ""  # the address of the paper that introduces it, where the curators know it
    code: str = ""  # the address of its authors' code, and
    licence: str = ""  # the licence of that code

    @property
    def colour(self) -> int:
        """The number of its family, which is that of its colour."""
        return FAMILIES.index(self.family)

    def place(self, label: str) -> int | None:
        """The place of a row's label among those with the recommended settings; None for a variant."""
        known, first = (*self.labels, self.plugin), stem(label)
        return known.index(first) if first in known else None

    def call(self, label: str) -> str:
        """The name in figures of the row with this label: what it adds to the method's name is in brackets.

        >>> NamedMethod(name="DEXML", plugin="dexml").call("dexml-hard[batch_size=64]")
        'DEXML (hard, batch_size=64)'
        """
        first = label.partition("[")[0]
        usual = folded(first) == folded(self.name) or self.place(first) == 0 or first == self.plugin
        rest = dict(self.adds).get(first, "" if usual else first.removeprefix(f"{self.plugin}-"))
        added = ", ".join(part for part in (rest, *swept(label)) if part)
        return f"{self.name} ({added})" if added else self.name


def of_all_results(what: str, expected: str, fits: Callable[[Any], bool]) -> list[Any]:
    """What the method `what` of the results of all plugins returns. Raises XMCBenchError where one of it does not fit.

    `expected` says what fits.
    """
    found = []
    for known in registry().all("result"):
        with calling("result", known.name):
            for each in getattr(known.thing, what)():
                if not fits(each):
                    raise TypeError(f"{what} returned {shown(each)}, expected {expected}")
                found.append(each)
    return found


def named_methods() -> tuple[NamedMethod, ...]:
    """The methods that installed results name."""
    return _named_by(registry())  # made once for a registry


@lru_cache(maxsize=1)
def _named_by(_: Registry) -> tuple[NamedMethod, ...]:
    return tuple(of_all_results("methods", "instances of NamedMethod", lambda each: isinstance(each, NamedMethod)))


def named(label: str, plugin: str = "") -> NamedMethod:
    """The method of a row: by its label, else by its name in papers, else by its plugin, else one of its own."""
    first, known = stem(label), named_methods()
    return (
        next((one for one in known if first in one.labels), None)
        or next((one for one in known if folded(one.name) == folded(first)), None)
        or next((one for one in known if plugin and one.plugin == plugin), None)
        or NamedMethod(name=first, labels=(first,))
    )


def stem(label: str) -> str:
    """A label without the values of a sweep.

    >>> stem("dexml-hard[batch_size=64]")
    'dexml-hard'
    """
    return label.partition("[")[0].strip()


def swept(label: str) -> list[str]:
    """The values of a sweep that a label has, without that of a budget.

    >>> swept("dexml-hard[batch_size=64,budget=small]")
    ['batch_size=64']
    """
    values = label.partition("[")[2].rstrip("]").split(",")
    return [value for value in values if value and not value.startswith("budget=")]
