"""LibMultiLabel: linear one-vs-rest over TF-IDF features, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from xmcbench import Method, MethodInfo, hookimpl, programs
from xmcbench_plugins.external import PythonProgram
from xmcbench_plugins.tfidf import Characters


class OneVsRest(PythonProgram):
    """One linear classifier per label with LIBLINEAR."""

    name = "libmultilabel-1vsrest"
    info = MethodInfo(
        summary="one linear classifier per label over TF-IDF features (LibMultiLabel)",
        citation="Lin et al., 2022: LibMultiLabel, a library for multi-class and multi-label text classification",
        needs=("libmultilabel",),
    )
    program = Path(__file__).with_name("program.py")
    environment = programs.Environment("libmultilabel", ("libmultilabel==0.10.0", "scikit-learn>=1.5"))

    class Config(Method.Config):
        ngrams: int = Field(default=1, ge=1, description="words of a term, at most")
        characters: Characters = None
        cost: float = Field(default=1.0, gt=0, description="C of LIBLINEAR")
        loss: Literal["squared-hinge", "log"] = Field(default="squared-hinge", description="of the classifiers")


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(OneVsRest)
