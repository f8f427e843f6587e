"""Modules that are loaded when something of them is first used, for commands that only list.

Nearly every plugin imports numpy, and a listing computes nothing. `importlib.util.LazyLoader` does not help: in Python
3.11 a second `import` statement loads its modules. Nor does a listing need pydantic's plugins, for which pydantic would
read the metadata of all installed packages.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

LATE = ("numpy", "psutil", "scipy")
LISTINGS = {"methods", "datasets", "teachers"}  # commands, beside those with `--dry-run`


class LateModule(ModuleType):
    """A module without content. The first look for any name in it, also for a submodule, loads the whole module.

    Only one thread may use it: two threads that load it at once would wait for each other.
    """

    def __getattr__(self, name: str) -> Any:
        if type(self) is LateModule:
            # So that the module's own code finds what it defines, and this runs once.
            self.__class__ = ModuleType  # type: ignore[assignment]
            spec = self.__spec__
            assert spec is not None
            assert spec.loader is not None
            self.__path__ = list(spec.submodule_search_locations or ())
            self.__file__, self.__loader__, self.__package__ = spec.origin, spec.loader, spec.name
            spec.loader.exec_module(self)
        return getattr(self, name)


def load_late(arguments: list[str]) -> None:
    """Make `LATE` modules load late, where the arguments of the command line ask for a listing."""
    if not ("--dry-run" in arguments or LISTINGS & set(arguments[:1])):
        return
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for name in LATE:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            sys.modules[name] = LateModule(name)
            sys.modules[name].__spec__ = spec
