"""Python environments of tests that install a package."""

from __future__ import annotations

import site
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(folder: Path) -> Path:
    """A virtual environment that sees the packages of this one and the checkout; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    inherited = [*site.getsitepackages(), str(ROOT), str(ROOT / "plugins")]
    lines = [f"import site; site.addsitedir({path!r})" for path in inherited]
    (packages / "inherited.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"
