"""Exceptions that the code of a third-party plugin raises, as one line for the user."""

from __future__ import annotations

import os
from pathlib import Path
from traceback import walk_tb

from xmcbench.plugins.registry import STRICT, registry


def plugin_failure(problem: BaseException) -> str | None:
    """A line that names the plugin and the line of its code that raised `problem`.

    None if no third-party plugin raised it, or if the author of a plugin asks for tracebacks (`STRICT`).
    """
    if os.environ.get(STRICT) == "1":
        return None
    for frame, line in reversed(list(walk_tb(problem.__traceback__))):
        origin = registry().origin_of(str(frame.f_globals.get("__name__", "")))
        if origin is not None:
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())
            return f"plugin {origin}: {place}: {reason} ({STRICT}=1 shows the traceback)"
    return None
