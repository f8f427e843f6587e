"""Python environments of methods whose packages conflict with those of xmcbench."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from xmcbench.errors import XMCBenchError
from xmcbench.files.atomic import atomic_write

MAKE_SECONDS = 1800
ENVIRONMENTS = "environments"  # a folder of the cache


@dataclass(frozen=True)
class Environment:
    """A Python with the packages that a method's program needs: created on request, or chosen by the user."""

    name: str
    requirements: tuple[str, ...]  # as for pip; other requirements are another environment
    no_dependencies: tuple[str, ...] = ()  # installed without their dependencies

    def directory(self, cache: Path | None = None) -> Path:
        """The folder of the environment."""
        from xmcbench.data.prepared import default_cache_dir

        identity = "\n".join([*self.requirements, "", *self.no_dependencies, sys.version])
        folder = f"{self.name}-{sha256(identity.encode()).hexdigest()[:12]}"
        return (cache or default_cache_dir()) / ENVIRONMENTS / folder

    def python(self, cache: Path | None = None) -> Path | None:
        """The interpreter, or None if no environment was created or chosen."""
        directory = self.directory(cache)
        link = directory.with_suffix(".python")
        if link.is_file():
            return Path(link.read_text(encoding="utf-8"))
        return directory / "bin" / "python" if (directory / "ready").is_file() else None

    def make(self, cache: Path | None = None) -> Path:
        """Create the environment with venv and pip; return its interpreter. Needs a package index."""
        directory = self.directory(cache)
        if (directory / "ready").is_file():
            return directory / "bin" / "python"
        python = directory / "bin" / "python"
        _call([sys.executable, "-m", "venv", "--clear", str(directory)])
        if self.no_dependencies:
            _call([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *self.no_dependencies])
        _call([str(python), "-m", "pip", "install", "--quiet", *self.requirements])
        with atomic_write(directory / "ready") as file:
            file.write(b"")
        return python

    def use(self, python: Path, cache: Path | None = None) -> None:
        """Choose the interpreter of an existing environment that has the packages."""
        if not os.access(python, os.X_OK):
            raise XMCBenchError(f"{python}: cannot be run, expected a Python interpreter")
        with atomic_write(self.directory(cache).with_suffix(".python")) as file:
            file.write(str(python.absolute()).encode())


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAKE_SECONDS)
    except (OSError, subprocess.SubprocessError) as problem:
        lines = str(getattr(problem, "stderr", "") or problem).strip().splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
        raise XMCBenchError(f"{' '.join(command[1:5])} ...: failed: {reason}") from problem
