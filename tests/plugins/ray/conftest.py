"""A Ray cluster of two nodes, emulated on this machine: one for all tests of a module, since it starts slowly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes import TRUSTED, install_fakes
from fakes.bench import Bench
from processes import gone, until

from xmcbench.plugins.registry import registry
from xmcbench_plugins.ray.executor import SETTINGS

from .ray_cluster import NODE

# A busy machine answers late; a node that is removed is noticed at once all the same.
PATIENT = {"RAY_health_check_timeout_ms": "60000", "RAY_health_check_failure_threshold": "20"}


def of_ray(process: psutil.Process) -> bool:
    """Whether a process is Ray's own. A server of the tests' own workers may have its folder in its path."""
    try:
        return any(word.startswith("ray::") or ("/ray/" in word and " " not in word) for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A head and another node, each a raylet of its own; this process is connected to them.

    A module's `HEAD` has more resources of the head.
    """
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as monkeypatch:
        site = tmp_path_factory.mktemp("site")
        install_fakes(site, monkeypatch)
        monkeypatch.setenv("XMCBENCH_PLUGINS", f"{TRUSTED},xmcbench")
        for name, value in {**SETTINGS, **PATIENT, "OMP_NUM_THREADS": "1"}.items():
            monkeypatch.setenv(name, value)
        head = {**NODE, "include_dashboard": False, **getattr(request.module, "HEAD", {})}
        if "num_gpus" in head:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # else no more than it names
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        started = [child for child in psutil.Process().children(recursive=True) if of_ray(child)]
        ray.shutdown()
        cluster.shutdown()
    registry.cache_clear()
    for process in psutil.wait_procs(started, timeout=30)[1]:  # one of Ray's own that hangs on a busy machine
        process.kill()
    assert until(lambda: all(gone(process.pid) for process in started))


@pytest.fixture
def ray_bench(cluster: Any, tmp_path: Path) -> Bench:  # noqa: ARG001  (the cluster is there while the test runs)
    """A place to run suites in, beside the cluster."""
    return Bench(tmp_path)
