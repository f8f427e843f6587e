"""Reading sparse text, the format of the Extreme Classification Repository, against pyxclib.

Random labels, five per row, read by both sides in turns; the matrices have to be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from peers import Places, Result
from report import in_turns

from xmcbench.data.formats import write_targets
from xmcbench.data.pairs import binary
from xmcbench.data.text_files import read_targets

EACH, REPEATS = 5, 3  # labels of a row


def pyxclib(path: Path) -> sp.csr_array:
    """The matrix as pyxclib reads it."""
    from xclib.data.data_utils import read_sparse_file

    matrix: sp.csr_array = read_sparse_file(str(path))
    return matrix


def results(places: Places) -> Iterator[Result]:
    rows, labels = (2000, 1000) if places.quick else (2_150_000, 1_300_000)
    drawn = np.random.default_rng(0).integers(labels, size=rows * EACH)
    starts = np.arange(0, len(drawn) + 1, EACH)
    written = binary(sp.csr_array((np.ones(len(drawn), np.float32), drawn, starts), (rows, labels)))
    path = places.out / "targets.txt"
    write_targets(written, path)
    sides: dict[str, Callable[[Path], sp.csr_array]] = {"xmcbench": read_targets}
    sides |= {"pyxclib": pyxclib} if find_spec("xclib") else {}
    for name, read in sides.items():
        other: Any = sp.csr_array(read(path)) != written
        assert other.nnz == 0, f"{name} read another matrix"
    seconds = in_turns({name: partial(read, path) for name, read in sides.items()}, REPEATS, time.process_time)
    speeds = {name: path.stat().st_size / 1e6 / least for name, least in seconds.items()}
    peer = "pyxclib" if "pyxclib" in speeds else ""
    yield Result("sparse text, read, 119 MB", speeds["xmcbench"], "MB/s", "100 MB/s", peer, speeds.get(peer))
