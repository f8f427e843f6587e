"""Arrays of `.npz` files that may come from anyone: nothing is unpacked before its declared size is checked.

And the header of a safetensors file, in one order.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.files.regular import open_regular

_HEADER_BYTES = 4096  # a header of a plain array has 128
_MAX_FILES = 100  # in one archive
_MAX_ITEM_BYTES = 1024  # of an entry: a number has 8, a hash in text 256
_KINDS = {"i": "integers", "u": "unsigned integers", "f": "floats", "b": "booleans"}  # letters of dtype.kind
_INTEGERS, _NUMBERS = "iu", "fiub"


@contextmanager
def open_npz(path: Path | str, opened: BinaryIO | None = None) -> Iterator[zipfile.ZipFile]:
    """The archive at `path`, a regular file, unless it is `opened`. Raises XMCBenchError for any other, and OSError."""
    with opened or open_regular(Path(path)) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if len(archive.namelist()) > _MAX_FILES:
                    raise XMCBenchError(f"{path}: holds more than {_MAX_FILES} files, expected a few arrays")
                yield archive
        except XMCBenchError:
            raise
        except Exception as problem:  # whatever zipfile and numpy make of a damaged file
            raise XMCBenchError(f"{path}: damaged: {problem}".splitlines()[0]) from problem


def array_names(archive: zipfile.ZipFile) -> set[str]:
    """The names of the arrays in an archive."""
    return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}


def read_array(archive: zipfile.ZipFile, name: str, kinds: str, most: int, where: str) -> np.ndarray:
    """The array `name`, of a dtype whose kind is one of `kinds`, with at most `most` entries; `where` starts errors."""
    if f"{name}.npy" not in archive.namelist():
        raise XMCBenchError(f"{where}: found no array {name}")
    with archive.open(f"{name}.npy") as file:
        size = archive.getinfo(f"{name}.npy").file_size  # more than this is not unpacked
        return _read_npy(file, size, kinds, most, f"{where}: array {name}")


def read_npy(path: Path, kinds: str, most: int) -> np.ndarray:
    """The array in a `.npy` file, of a dtype whose kind is one of `kinds`, with at most `most` entries."""
    with open_regular(path) as file:
        return _read_npy(file, path.stat().st_size, kinds, most, str(path))


def _read_npy(file: IO[bytes], size: int, kinds: str, most: int, where: str) -> np.ndarray:
    """The array in a file of `size` bytes, in C order and writable. Its header is checked before its content is read.

    An array of objects, which would be a pickle, has the kind `O`.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_HEADER_BYTES)
    except ValueError as problem:
        raise XMCBenchError(f"{where}: damaged: {problem}".splitlines()[0]) from problem
    if dtype.kind not in kinds:
        expected = " or ".join(_KINDS.get(kind, "text") for kind in kinds)
        raise XMCBenchError(f"{where}: found the type {dtype}, expected {expected}")
    if (entries := math.prod(shape)) > most:
        raise XMCBenchError(f"{where}: found {entries:,} entries, expected at most {most:,}")
    if dtype.itemsize > _MAX_ITEM_BYTES:
        raise XMCBenchError(f"{where}: found entries of {dtype.itemsize:,} bytes")
    if file.tell() + entries * dtype.itemsize != size:
        length = size - file.tell()
        raise XMCBenchError(f"{where}: damaged: an array of shape {shape} takes {length:,} bytes")
    content: np.ndarray = np.frombuffer(bytearray(file.read()), dtype)  # writable
    return content.reshape(shape, order="F").copy() if fortran else content.reshape(shape)


def sort_header(file: BinaryIO) -> None:
    """Sort the keys in the header of a safetensors file in place: the library writes metadata in any order, so that
    equal tensors would have other digests."""
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    content = json.loads(file.read(size))
    header = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    if len(header) > size:
        raise ValueError(f"the sorted header has {len(header)} bytes, expected at most {size}")
    file.seek(8)
    file.write(header.ljust(size))


def read_csr(
    archive: zipfile.ZipFile, most: int, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """`indptr`, `indices`, `data` (at most `most` entries each) and shape of what `scipy.sparse.save_npz` wrote.

    Matrices in CSC and COO format are turned into CSR; entries that are there twice stay so.
    """
    stored = read_array(archive, "format", "SU", 1, where)
    layout = stored.item() if stored.ndim == 0 else None
    layout = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
    names = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}.get(str(layout))
    if names is None:
        raise XMCBenchError(
            f"{where}: found a matrix in {layout!r} format, expected 'csr', 'csc' or 'coo': .tocsr() makes the first"
        )
    shape = read_array(archive, "shape", _INTEGERS, most, where)
    first, second = (read_array(archive, name, _INTEGERS, most, where) for name in names)
    data = read_array(archive, "data", _NUMBERS, most, where)
    if any(part.ndim != 1 for part in (shape, first, second, data)) or len(shape) != 2:
        raise XMCBenchError(f"{where}: found arrays of other dimensions, expected a matrix saved by scipy")
    rows, columns = shape.tolist()
    if layout == "coo":
        return *_rows_together(first, second, data, rows, where), (rows, columns)
    lines = rows if layout == "csr" else columns
    valid = len(first) == lines + 1 and first[0] == 0 and first[-1] == len(second) == len(data)
    if not valid or (np.diff(first.astype(np.int64)) < 0).any():
        kind = "row" if layout == "csr" else "column"
        raise XMCBenchError(f"{where}: found {kind} pointers that do not fit {lines} {kind}s, expected a valid matrix")
    if layout == "csr":
        return first, second, data, (rows, columns)
    columns_of_entries = np.repeat(np.arange(columns), np.diff(first))
    return *_rows_together(second, columns_of_entries, data, rows, where), (rows, columns)


def _rows_together(
    rows: np.ndarray, columns: np.ndarray, data: np.ndarray, num_rows: int, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`indptr`, `indices` and `data` of entries in any order."""
    if not len(rows) == len(columns) == len(data):
        raise XMCBenchError(f"{where}: found {len(rows)} rows, {len(columns)} columns and {len(data)} values")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
        raise XMCBenchError(f"{where}: found rows {rows.min()} to {rows.max()}, expected 0 to {num_rows - 1}")
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
    return indptr, columns[order], data[order]
