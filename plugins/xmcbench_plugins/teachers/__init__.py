"""Teachers, and the judges that ask them: answers are cached in the store of results and charged to trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl


@hookimpl
def register_teachers(register: Callable[[type[Any]], None]) -> None:
    """Register a server that is asked over HTTP, a local model, common words, and the simulated teacher."""
    from xmcbench_plugins.teachers.annotated import Annotated  # `--help` imports this package, and needs no numpy
    from xmcbench_plugins.teachers.causal_model import CausalModel
    from xmcbench_plugins.teachers.endpoint import Endpoint
    from xmcbench_plugins.teachers.words import Words

    for teacher in (Endpoint, CausalModel, Annotated, Words):
        register(teacher)
