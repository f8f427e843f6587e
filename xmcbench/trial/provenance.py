"""The code, versions, hardware and command that a trial ran with. The fixed parts are collected once per process.

A result also depends on the code of a plugin, but its key only has the version that the plugin's author raises. With
the digest of that code (`xmcbench/plugins/code.py`) in the record a change is noticed whose author forgot to raise the
version.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xmcbench.errors.secrets import redacted
from xmcbench.plugins.code import Code, code_of, code_of_source
from xmcbench.plugins.hookspecs import VERSIONED
from xmcbench.plugins.registry import OWN, registry
from xmcbench.trial.record_fields import CODE_FORM
from xmcbench.trial.trial import Trial

CHECKOUT = Path(__file__).parents[2]  # of the package, where it is installed from one

DISTRIBUTIONS = (
    "xmcbench", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn", "faiss-cpu", "faiss-gpu"
)  # fmt: skip

CHANGED = "code changed, version did not"
OLDER_FORM = "its code was noted in an older form and may have changed"


def provenance(command: list[str] | None = None) -> dict[str, Any]:
    """The provenance that a record stores, for readers who want to judge or reproduce a result."""
    program, *arguments = command or sys.argv
    # The name of the program only: the folder that it is installed in is private.
    return {"git": _git(CHECKOUT), **machine(), **_torch(), "command": redacted([Path(program).name, *arguments])}


@cache
def machine() -> dict[str, Any]:
    """The packages and the hardware, as far as they stay the same."""
    import psutil

    from xmcbench.data.pairs import usable_cores  # imports numpy, which a leaderboard of papers does without

    return {
        "versions": _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "cores_usable": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "host": sha256(platform.node().encode()).hexdigest()[:12],  # distinguishes machines without naming them
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@cache
def _git(root: Path) -> dict[str, Any]:
    """The commit of the checkout that contains the package; empty if the package is installed without a checkout."""
    said = ask_git(root, "status", "--porcelain=v2", "--branch") if (root / ".git").exists() else None
    commit, *lines = (said or "").splitlines() or [""]
    if not re.fullmatch(r"# branch\.oid [0-9a-f]+", commit):  # no repository, or one without a commit
        return {}
    return {"commit": commit.split()[-1], "dirty": any(not line.startswith("# ") for line in lines)}


def uncommitted() -> list[str]:
    """The changed and new files of the package's checkout; empty where there is no checkout."""
    changes = ask_git(CHECKOUT, "status", "--porcelain") if (CHECKOUT / ".git").exists() else ""
    return [line.split(maxsplit=1)[1] for line in (changes or "").splitlines()]


def ask_git(folder: Path, *arguments: str) -> str | None:
    """The output of git in `folder`; None where no repository holds it, or git fails."""
    command = ("git", "-C", str(folder), *arguments)
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _torch() -> dict[str, Any]:
    """Threads and GPUs as torch sees them; empty if the method did not import torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {"torch_threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts


def plugin_code(trial: Trial) -> dict[str, Any]:
    """The digest of the code that the result of a trial depends on outside xmcbench, and its commit.

    `{"digest": ..., "form": ..., "git": {"commit": ..., "dirty": ...}}`; `git` is empty where no repository holds the
    files.
    """
    code = _code_of(trial)
    return {"digest": code.digest, "form": CODE_FORM, "git": _commit_of(code.files)}


def plugin_digest(trial: Trial) -> str:
    """The digest of the trial's code, as it was when this process first asked: it goes on with what it imported."""
    return _code_of(trial).digest


def evaluator_digests(names: Iterable[str]) -> dict[str, str]:
    """The digests of the code of evaluators, by name. Those of xmcbench have none: `METRIC_VERSION` tells of them.

    A name may have parameters: `Head:most=50`.
    """
    families = {name: name.partition(":")[0] for name in names}
    others = {name: family for name, family in families.items() if registry().origin("evaluator", family) != OWN}
    return {name: code_of(registry().packages("evaluator", family)).digest for name, family in others.items()}


def code_files(kind: str, name: str) -> tuple[Path, ...]:
    """The files of the modules that the code of what is registered as `name` consists of."""
    return code_of(registry().packages(kind, name)).files


def _code_of(trial: Trial) -> Code:
    method = registry().method(trial.method, trial.distribution)
    if (source := registry().sources.get(method.thing)) is not None:
        return code_of_source(source)
    packages = list(registry().packages("method", method.name))
    for part in trial.versions:
        kind, _, name = part.partition(" ")
        if kind in VERSIONED and registry().origin(kind, name) != OWN:  # versions tell of what is built in
            packages += registry().packages(kind, name)
            if kind == "teacher" and registry().origin("judge", judge := registry().thing(kind, name).judge) != OWN:
                packages += registry().packages("judge", judge)
    return code_of(list(dict.fromkeys(packages)))


@cache
def _commit_of(files: tuple[Path, ...]) -> dict[str, Any]:
    """The commit that holds the files; `dirty` where one of them differs from it or is not in it."""
    commits, dirty = set(), False
    for folder in {path.parent for path in files}:
        names = [path.name for path in files if path.parent == folder]
        commit = ask_git(folder, "rev-parse", "HEAD")
        if commit is None:
            return {}
        commits.add(commit)
        tracked = (ask_git(folder, "ls-files", "--", *names) or "").splitlines()
        dirty |= len(tracked) < len(names) or bool(ask_git(folder, "status", "--porcelain", "--", *names))
    return {"commit": min(commits), "dirty": dirty or len(commits) > 1} if commits else {}
