"""Checks that several kinds of plugins share."""

from __future__ import annotations

from typing import Any


def check_subclass(thing: Any, base: type[Any]) -> None:
    """Raise TypeError unless `thing` is a subclass of `base` that defines all its abstract methods."""
    if not (isinstance(thing, type) and issubclass(thing, base)):
        raise TypeError(f"{thing!r} is not a subclass of xmcbench.{base.__name__}")
    if missing := sorted(getattr(thing, "__abstractmethods__", ())):
        raise TypeError(f"{thing.__name__} does not define {', '.join(missing)}")


def check_config(thing: Any, base: Any) -> None:
    """Raise TypeError unless the settings of `thing`, its `Config`, extend those of `base`."""
    if not (isinstance(thing.Config, type) and issubclass(thing.Config, base.Config)):
        raise TypeError(f"{thing.__name__}.Config does not extend {base.__name__}.Config")
