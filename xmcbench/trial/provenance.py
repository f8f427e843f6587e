"""With what a trial was run: code, versions, hardware, command. Collected once a process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from xmcbench.files.secrets import redacted

DISTRIBUTIONS = (
    "xmcbench", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn", "faiss-cpu", "faiss-gpu"
)  # fmt: skip


def provenance(command: list[str] | None = None) -> dict[str, Any]:
    """The facts a reader needs to judge or repeat a result, as a record keeps them."""
    program, *arguments = command or sys.argv
    # The folder that the program is installed in is private.
    return {**_fixed(), **_torch(), "command": redacted([Path(program).name, *arguments])}


@cache
def _fixed() -> dict[str, Any]:
    return {
        "git": _git(Path(__file__).parents[2]),
        "versions": _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "host": sha256(platform.node().encode()).hexdigest()[:12],  # tells machines apart without naming them
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(root: Path) -> dict[str, Any]:
    """Commit of the checkout the package lies in, wherever the command was started; empty for an installed one."""
    if not (root / ".git").exists():
        return {}
    try:
        commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_output("git", "-C", str(root), "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _torch() -> dict[str, Any]:
    """Threads and device, where the method has imported torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {"torch_threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts
