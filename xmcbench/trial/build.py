"""Builds the method of a trial."""

from __future__ import annotations

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.method import Method
from xmcbench.trial.trial import Trial


def build_method(trial: Trial) -> Method:
    """The trial's method with its settings, not fitted. Raises XMCBenchError if another version is installed."""
    found = registry().method(trial.method, trial.distribution)
    if (found.origin.distribution, found.origin.version) != (trial.distribution, trial.version):
        raise XMCBenchError(
            f"method {trial.method!r} is of {found.origin}, expected {trial.distribution} {trial.version}"
        )
    method: Method = found.thing(found.thing.Config.model_validate(trial.config))
    return method
