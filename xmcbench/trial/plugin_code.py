"""The code of a plugin: the files of its own modules, their digest, and the commit that holds them.

A result depends on this code, but its key only has the version that the plugin's author raises. With the digest in the
record a change is noticed whose author forgot to raise the version.
"""

from __future__ import annotations

import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from xmcbench.plugins.registry import OWN, registry
from xmcbench.trial.provenance import ask_git
from xmcbench.trial.trial import Trial

CHANGED = "code changed, version did not"
CLASSES = ("sampler", "teacher")  # kinds of plugins that a method looks up by name; `Trial.versions` lists them


def plugin_code(trial: Trial) -> dict[str, Any]:
    """The digest of the code that the result of a trial depends on outside xmcbench, and its commit.

    `{"digest": ..., "git": {"commit": ..., "dirty": ...}}`; `git` is empty where no repository holds the files.
    """
    return {"digest": plugin_digest(trial), "git": _git(_files(trial))}


def plugin_digest(trial: Trial) -> str:
    """SHA-256 of the plugins' files, as they were when this process first asked: it goes on with what it imported."""
    return _digest(_files(trial))


def _files(trial: Trial) -> tuple[Path, ...]:
    things = [registry().method(trial.method, trial.distribution).thing]
    for part in trial.versions:
        kind, _, name = part.partition(" ")
        if kind in CLASSES:
            things.append(getattr(registry(), kind)(name))
    return tuple(path for thing in things for path in code_files(thing))


def code_files(thing: Any) -> tuple[Path, ...]:
    """The Python files of the packages in which a registered class and the plugins it inherits from are written."""
    found: dict[Path, None] = {}
    for module in {kind.__module__: None for kind in getattr(thing, "__mro__", ())}:
        name = module.partition(".")[0]
        if name.startswith(f"{OWN}_") or registry().origin_of(name):
            package = sys.modules[name]
            files = [file for folder in getattr(package, "__path__", ()) for file in Path(folder).rglob("*.py")]
            found |= dict.fromkeys(sorted(files) or [Path(package.__file__)] if package.__file__ else sorted(files))
    return tuple(found)


@cache
def _digest(files: tuple[Path, ...]) -> str:
    digest = sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _git(files: tuple[Path, ...]) -> dict[str, Any]:
    """The commit that holds the files; `dirty` where one of them differs from it or is not in it."""
    commits, dirty = set(), False
    for folder in {path.parent for path in files}:
        own = [path.name for path in files if path.parent == folder]
        commit = ask_git(folder, "rev-parse", "HEAD")
        if commit is None:
            return {}
        commits.add(commit)
        tracked = (ask_git(folder, "ls-files", "--", *own) or "").splitlines()
        dirty |= len(tracked) < len(own) or bool(ask_git(folder, "status", "--porcelain", "--", *own))
    return {"commit": min(commits), "dirty": dirty or len(commits) > 1} if commits else {}
