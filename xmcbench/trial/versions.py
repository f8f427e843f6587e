"""Versions of the code that a result depends on, by part: `{"method": 1, "engine": 1, "teacher openai": 2}`.

A change of the code that moves results raises the version of the part it is in. The versions are in a trial's key, so
that the trial runs again, and in its record, so that a result of older code is recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xmcbench.plugins.registry import registry

ENGINE_VERSION = 2  # of the results of `xmcbench.engine`: encoders, losses, sampling, search and training
SELECTION_VERSION = 2  # of results with held-out queries: how they are set aside and what the others share with them
SECONDS_VERSION = 2  # of results within a budget of device seconds: what a second is, and which passes fit into it

Versions = Mapping[str, int]


def charge_part(limit: str) -> str:
    """The part of the code that counts what a method is charged for `limit`: results depend on it where that can end
    a training. Its version is 1 where none is named.
    """
    return f"charge of {limit}"


def older_parts(versions: Versions, newest: Versions, limits: Collection[str]) -> dict[str, int]:
    """The parts of `versions` that are older than `newest`, in a trial that any of `limits` can end."""
    stated = dict.fromkeys(map(charge_part, limits), 1) | dict(versions)
    return {part: version for part, version in stated.items() if version < newest.get(part, 0)}


def harness_versions(metric: str | None, limits: Collection[str]) -> dict[str, int]:
    """The versions of the parts of the harness that decide where training ends and which checkpoint stays.

    They are held-out queries and the evaluator of `metric`, where there is a selection, and the clock, where device
    seconds are among the `limits` of the budget.
    """
    versions = {charge_part("device_seconds"): SECONDS_VERSION} if "device_seconds" in limits else {}
    if metric is None:
        return versions
    name = metric.partition("@")[0].partition(":")[0]
    return versions | {"selection": SELECTION_VERSION, f"evaluator {name}": registry().version("evaluator", name)}


def newest(versions: Versions, others: Versions) -> dict[str, int]:
    """The higher version of each part."""
    return {part: max(versions.get(part, 0), others.get(part, 0)) for part in {**versions, **others}}
