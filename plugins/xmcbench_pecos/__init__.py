"""PECOS: XR-Linear over TF-IDF features, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from xmcbench import Environment, Method, MethodInfo, hookimpl
from xmcbench_external import PythonProgram

ENVIRONMENT = Environment(
    "pecos",
    ("numpy<2", "scipy<1.14", "scikit-learn>=1.5"),
    no_dependencies=("libpecos==1.2.8",),  # XR-Linear needs no other dependencies
)
PROGRAM = Path(__file__).with_name("program.py")


class XRLinear(PythonProgram):
    """XR-Linear (Yu et al., 2022): a tree of label clusters with a linear ranker at each level."""

    name = "pecos-xrlinear"
    info = MethodInfo(
        summary="XR-Linear: hierarchical linear rankers over TF-IDF features (PECOS)",
        citation="Yu et al., 2022: PECOS: Prediction for Enormous and Correlated Output Spaces",
        needs=("libpecos",),
    )
    program = PROGRAM
    environment = ENVIRONMENT

    class Config(Method.Config):
        ngrams: int = Field(default=1, ge=1, description="words of a term, at most")
        branches: int = Field(default=16, ge=2, description="children of a cluster")
        max_leaf: int = Field(default=100, ge=1, description="labels of a cluster at the last level, at most")
        beam: int = Field(default=10, ge=1, description="clusters of a level that prediction follows")
        cost: float = Field(default=1.0, gt=0, description="C of the linear rankers")
        negatives: Literal["tfn", "man", "tfn+man"] = Field(default="tfn", description="scheme of negative sampling")

    config: Config


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(XRLinear)
