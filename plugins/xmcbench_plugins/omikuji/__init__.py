"""Omikuji: Parabel-like trees over TF-IDF features, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from xmcbench import Method, MethodInfo, hookimpl, programs
from xmcbench_plugins.external import PythonProgram
from xmcbench_plugins.tfidf import Characters


class Omikuji(PythonProgram):
    """Balanced or Bonsai-like label trees with linear classifiers (Prabhu et al., 2018; Khandagale et al., 2020)."""

    name = "omikuji-plt"
    info = MethodInfo(
        summary="label trees in the manner of Parabel and Bonsai over TF-IDF features (Omikuji)",
        citation="Prabhu et al., 2018: Parabel; Khandagale et al., 2020: Bonsai",
        needs=("omikuji",),
    )
    uses_gpu = False
    program = Path(__file__).with_name("program.py")
    environment = programs.Environment("omikuji", ("omikuji==0.5.2", "scikit-learn>=1.5"))

    class Config(Method.Config):
        ngrams: int = Field(default=1, ge=1, description="words of a term, at most")
        characters: Characters = None
        trees: int = Field(default=3, ge=1, description="trees of the forest")
        branches: int = Field(default=2, ge=2, description="clusters that a node is split into")
        max_depth: int = Field(default=20, ge=1, description="levels of a tree, at most")
        beam: int = Field(default=10, ge=1, description="nodes that prediction explores at each level")
        cost: float = Field(default=1.0, gt=0, description="C of the linear classifiers")


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(Omikuji)
