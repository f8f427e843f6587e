"""Predictions in `.npz`: a CSR matrix as `scipy.sparse.save_npz` writes it, or `indices` and `scores`.

Nothing is unpacked before its header and size are checked: a small file may claim to hold any amount.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.imported.entries import Entries, Expected, from_rows

_HEADER_BYTES = 4096  # a header of a plain array has 128


def read_arrays(path: Path, expected: Expected) -> Entries:
    """The entries of an `.npz` file. Raises XMCBenchError where it is damaged, too large or of another layout."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
            if names >= {"indptr", "indices", "data", "shape"}:
                return _matrix(archive, expected)
            for labels in ("indices", "labels"):
                if names >= {labels, "scores"}:
                    indices, scores = _array(archive, labels, "iu", expected), _array(archive, "scores", "f", expected)
                    return from_rows(indices, scores, expected)
    except XMCBenchError:
        raise
    except Exception as problem:  # whatever zipfile and numpy make of a damaged file
        raise expected.error(f"damaged: {problem}".splitlines()[0]) from problem
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
    """The array `name`, of one of the dtype `kinds`; its size is checked before it is read."""
    with archive.open(f"{name}.npy") as file:
        size = archive.getinfo(f"{name}.npy").file_size  # more than this is not unpacked
        shape, dtype, header = _header(file, name, expected)
        if dtype.kind not in kinds:
            raise expected.error(f"array {name}: found the type {dtype}, expected {' or '.join(map(_kind, kinds))}")
        if math.prod(shape) > max(expected.max_entries, expected.num_queries + 1):
            expected.check_entries(math.prod(shape))
            raise expected.error(f"array {name}: found the shape {shape}, larger than the dataset allows")
        if header + math.prod(shape) * dtype.itemsize != size:
            raise expected.error(f"damaged: array {name} is of shape {shape}, but takes {size - header:,} bytes")
        content: np.ndarray = np.frombuffer(file.read(), dtype)
        return content.reshape(shape)


def _header(file: Any, name: str, expected: Expected) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type and size in bytes of the header of an `.npy` file."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_HEADER_BYTES)
    except ValueError as problem:
        raise expected.error(f"damaged: array {name}: {problem}".splitlines()[0]) from problem
    if fortran and len(shape) > 1:
        raise expected.error(f"array {name}: found columns first, expected rows first: np.ascontiguousarray turns it")
    return shape, dtype, file.tell()


def _kind(letter: str) -> str:
    return {"i": "integers", "u": "unsigned integers", "f": "floats", "b": "booleans"}.get(letter, "text")
