"""Builds the method of a trial."""

from __future__ import annotations

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.trial.method import Method
from xmcbench.trial.trial import Trial


def build_method(trial: Trial) -> Method:
    """The trial's method with its settings, not fitted. Raises XMCBenchError if another version is installed."""
    plugin = registry().method(trial.method, trial.distribution)
    if plugin.origin.distribution != trial.distribution:
        raise XMCBenchError(f"method {trial.method!r} is of {plugin.origin}, expected {trial.distribution}")
    config = plugin.thing.Config.model_validate(trial.config)
    for part, version in plugin.thing.versions(config).items():
        if (wanted := trial.versions.get(part, version)) != version:
            raise XMCBenchError(f"method {trial.method!r}: found version {version} of {part}, expected {wanted}")
    method: Method = plugin.thing(config)
    return method
