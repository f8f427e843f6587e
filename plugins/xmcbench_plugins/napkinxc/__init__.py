"""napkinXC: probabilistic label trees and one-vs-rest over TF-IDF features, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from xmcbench import Method, MethodInfo, hookimpl, programs
from xmcbench_plugins.external import PythonProgram
from xmcbench_plugins.tfidf import Characters


class NapkinXC(PythonProgram):
    """The base of both models: features, linear solver, environment."""

    uses_gpu = False
    program = Path(__file__).with_name("program.py")
    environment = programs.Environment("napkinxc", ("napkinxc==0.7.2", "scikit-learn>=1.5"))

    class Config(Method.Config):
        ngrams: int = Field(default=1, ge=1, description="words of a term, at most")
        characters: Characters = None
        cost: float = Field(default=10.0, gt=0, description="C of LIBLINEAR")
        threads: int = Field(default=0, ge=0, description="threads; 0: all cores")


class PLT(NapkinXC):
    """Probabilistic label trees (Jasinska-Kobus et al., 2020)."""

    name = "napkinxc-plt"
    info = MethodInfo(
        summary="probabilistic label trees over TF-IDF features (napkinXC)",
        citation="Jasinska-Kobus et al., 2020: Probabilistic Label Trees for Extreme Multi-label Classification",
        needs=("napkinxc",),
    )

    class Config(NapkinXC.Config):
        arity: int = Field(default=2, ge=2, description="children of a node")
        max_leaves: int = Field(default=100, ge=2, description="labels of the last inner nodes, at most")
        ensemble: int = Field(default=1, ge=1, description="trees")

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "model": "plt"}


class OVR(NapkinXC):
    """One logistic regression per label."""

    name = "napkinxc-ovr"
    info = MethodInfo(summary="one logistic regression per label over TF-IDF features (napkinXC)", needs=("napkinxc",))

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "model": "ovr"}


@hookimpl
def register_methods(register: Callable[[type[Method]], None]) -> None:
    register(PLT)
    register(OVR)
