"""Predictions in `.npz`: a CSR matrix as `scipy.sparse.save_npz` writes it, or `indices` and `scores`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from xmcbench.evaluation.imported.entries import Entries, Expected, from_rows
from xmcbench.files.arrays import array_names, open_npz, read_array


def read_arrays(path: Path, expected: Expected) -> Entries:
    """The entries of an `.npz` file. Raises XMCBenchError if it is damaged, too large or of another layout."""
    with open_npz(path) as archive:
        names = array_names(archive)
        if names >= {"indptr", "indices", "data", "shape"}:
            return _matrix(archive, expected)
        for labels in ("indices", "labels"):
            if names >= {labels, "scores"}:
                indices, scores = _array(archive, labels, "iu", expected), _array(archive, "scores", "f", expected)
                return from_rows(indices, scores, expected)
    raise expected.error(
        f"found the arrays {', '.join(sorted(names)) or 'none'}, "
        "expected data, indices, indptr, shape (scipy.sparse.save_npz) or indices, scores"
    )


def _matrix(archive: zipfile.ZipFile, expected: Expected) -> Entries:
    layout = _array(archive, "format", "SU", expected).item()
    layout = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
    if layout != "csr":
        raise expected.error(f"found a sparse matrix of format {layout!r}, expected 'csr': call .tocsr() before saving")
    expected.check_shape(tuple(int(size) for size in _array(archive, "shape", "iu", expected)))
    indptr, indices = (_array(archive, name, "iu", expected).astype(np.int64) for name in ("indptr", "indices"))
    data = _array(archive, "data", "fiub", expected)
    whole = indptr.shape == (expected.num_queries + 1,) and indices.shape == data.shape == (len(data),)
    if not (whole and indptr[0] == 0 and indptr[-1] == len(data) and (np.diff(indptr) >= 0).all()):
        raise expected.error("damaged: indptr, indices and data do not belong together")
    expected.check_entries(len(data))
    return Entries(indptr, indices, data.astype(np.float64))


def _array(archive: zipfile.ZipFile, name: str, kinds: str, expected: Expected) -> np.ndarray:
    return read_array(archive, name, kinds, max(expected.max_entries, expected.num_queries + 1), str(expected.path))
