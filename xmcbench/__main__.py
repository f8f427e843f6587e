"""The command `xmcbench`, also as `python -m xmcbench`: an interrupt ends it in a line, also while it starts."""

from __future__ import annotations

import gc
import os
import sys

INTERRUPTED = 130
ALLOCATIONS = 100_000  # between collections: modules are no garbage, and looking for some took a tenth of a listing


def main() -> None:
    """Run the command line."""
    gc.set_threshold(ALLOCATIONS)
    try:
        from xmcbench.files.late_modules import load_late

        load_late(sys.argv[1:])
        from xmcbench.cli import main as command

        command()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
