"""Folders of the data directory that an import makes, replaces and removes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xmcbench.data import formats
from xmcbench.data.folder import CARD_FILE, LONGEST_NAME, FolderSource
from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.files.atomic import atomic_directory, beside
from xmcbench.plugins.registry import registry

_SUFFIX = 40  # bytes that temporary names and the names of prepared copies add to that of a dataset


def check_name(name: str) -> None:
    """Raise XMCBenchError unless a folder `name` of the data directory is what `load(name)` reads."""
    plain = name.isprintable() and name == name.strip() and "/" not in name and "\\" not in name
    if not (plain and name and name[0] not in ".-" and len(os.fsencode(name)) <= LONGEST_NAME - _SUFFIX):
        raise XMCBenchError(f"dataset name: found {shown(name)}, expected a plain folder name")
    try:
        known = registry().dataset(name)
    except UnknownNameError:
        return
    if not isinstance(known, FolderSource):
        raise XMCBenchError(f"dataset name: found {name!r}, which is generated: a folder of that name is never read")


def check_removable(folder: Path) -> None:
    """Raise XMCBenchError unless `folder` is a dataset and holds nothing else."""
    if folder.is_symlink() or not folder.is_dir():
        raise XMCBenchError(f"{folder}: found no folder of a dataset")
    known = {stem for layout in formats.LAYOUTS for stem in layout.stems}
    known |= {name for names in formats.IGNORE_FILES.values() for name in names}
    known |= {CARD_FILE, *(f"{name}.gz" for name in known)}
    for path in sorted(folder.rglob("*")):
        if path.relative_to(folder).as_posix() not in known and not (path.is_dir() and path.name == "raw"):
            raise XMCBenchError(f"{path}: is no file of a dataset; nothing is deleted, remove the folder by hand")


def remove(folder: Path) -> None:
    """Remove the folder of a dataset. It is gone at once: under its name it is never there in part."""
    check_removable(folder)
    doomed = beside(folder)
    folder.rename(doomed)
    shutil.rmtree(doomed)


@contextmanager
def new_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A new folder that becomes `folder` when the block succeeds, with `replace` in place of an older dataset.

    Raises XMCBenchError if there is such a folder already.
    """
    if folder.exists() and replace:
        check_removable(folder)
    elif folder.exists():
        raise XMCBenchError(f"{folder}: found a dataset of this name, expected a new --name, or --replace")
    with atomic_directory(folder, replace=replace) as made:
        yield made
