"""Reading sparse text, the format of the Extreme Classification Repository: MB/s of ours and of pyxclib.

Random labels, five per row. Both sides read the same file in turns in one process; the least CPU seconds count, and the
matrices have to be equal. Without pyxclib ours is measured alone.

    python benchmarks/sparse_text.py
    python benchmarks/sparse_text.py --rows 100000    # a quick look
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from report import least_seconds, options, report

from xmcbench.data.exporting import write_targets
from xmcbench.data.pairs import binary
from xmcbench.data.sparse_text import read_targets

LABELS_PER_ROW = 5


def targets(num_rows: int, num_labels: int) -> sp.csr_array:
    """[num_rows, num_labels] of ones at random; a label that a row draws twice counts once."""
    labels = np.random.default_rng(0).integers(num_labels, size=num_rows * LABELS_PER_ROW)
    starts = np.arange(0, len(labels) + 1, LABELS_PER_ROW)
    return binary(sp.csr_array((np.ones(len(labels), np.float32), labels, starts), (num_rows, num_labels)))


def pyxclib(path: Path) -> sp.csr_array:
    """The matrix as pyxclib reads it."""
    from xclib.data.data_utils import read_sparse_file

    return read_sparse_file(str(path))


def main() -> None:
    asked = options(__doc__, rows=2_150_000, labels=1_300_000, repeats=3).parse_args()
    sides: dict[str, Callable[[Path], sp.csr_array]] = {"xmcbench": read_targets}
    if find_spec("xclib"):
        sides["pyxclib"] = pyxclib
    written = targets(asked.rows, asked.labels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "targets.txt"
        write_targets(written, path)
        megabytes = path.stat().st_size / 1e6
        for name, read in sides.items():
            assert (sp.csr_array(read(path)) != written).nnz == 0, f"{name} read another matrix"
        cases = {name: partial(read, path) for name, read in sides.items()}
        seconds = least_seconds(cases, asked.repeats, time.process_time)
    rows = [
        {"side": name, "MB": megabytes, "CPU s": least, "MB/s": megabytes / least} for name, least in seconds.items()
    ]
    report("sparse_text", rows, asked.out)


if __name__ == "__main__":
    main()
