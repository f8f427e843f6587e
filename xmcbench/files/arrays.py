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
from typing import Any, BinaryIO

import numpy as np

from xmcbench.errors import XMCBenchError
from xmcbench.files.regular import open_regular

_HEADER_BYTES = 4096  # a header of a plain array has 128
_MAX_FILES = 100  # in one archive
_MAX_ITEM_BYTES = 1024  # of an entry: a number has 8, a hash in text 256
_KINDS = {"i": "integers", "u": "unsigned integers", "f": "floats", "b": "booleans"}  # letters of dtype.kind


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
        shape, dtype = _header(file, name, where)
        if dtype.kind not in kinds:
            expected = " or ".join(_KINDS.get(kind, "text") for kind in kinds)
            raise XMCBenchError(f"{where}: array {name}: found the type {dtype}, expected {expected}")
        if (entries := math.prod(shape)) > most:
            raise XMCBenchError(f"{where}: array {name}: found {entries:,} entries, expected at most {most:,}")
        if dtype.itemsize > _MAX_ITEM_BYTES:
            raise XMCBenchError(f"{where}: array {name}: found entries of {dtype.itemsize:,} bytes")
        if file.tell() + entries * dtype.itemsize != size:
            found = size - file.tell()
            raise XMCBenchError(f"{where}: damaged: array {name} is of shape {shape}, but takes {found:,} bytes")
        content: np.ndarray = np.frombuffer(bytearray(file.read()), dtype)  # writable
        return content.reshape(shape)


def _header(file: Any, name: str, where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type in the header of an `.npy` file. Reads no pickle: an array of objects has the kind `O`."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_HEADER_BYTES)
    except ValueError as problem:
        raise XMCBenchError(f"{where}: damaged: array {name}: {problem}".splitlines()[0]) from problem
    if fortran and len(shape) > 1:
        raise XMCBenchError(
            f"{where}: array {name}: found columns first, expected rows first: np.ascontiguousarray turns it"
        )
    return shape, dtype


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
    """`indptr`, `indices`, `data` (at most `most` entries each) and shape of what `scipy.sparse.save_npz` wrote."""
    stored = read_array(archive, "format", "SU", 1, where)
    layout = stored.item() if stored.ndim == 0 else None
    layout = layout.decode(errors="replace") if isinstance(layout, bytes) else layout
    if layout != "csr":
        raise XMCBenchError(f"{where}: found a matrix in {layout!r} format, expected 'csr', as .tocsr() makes it")
    kinds = {"shape": "iu", "indptr": "iu", "indices": "iu", "data": "fiub"}
    parts = [read_array(archive, name, kind, most, where) for name, kind in kinds.items()]
    if any(part.ndim != 1 for part in parts) or len(parts[0]) != 2:
        raise XMCBenchError(f"{where}: found arrays of other dimensions, expected a CSR matrix saved by scipy")
    (rows, columns), indptr, indices, data = parts[0].tolist(), *parts[1:]
    valid = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == len(indices) == len(data)
    if not valid or (np.diff(indptr) < 0).any():
        raise XMCBenchError(f"{where}: found row pointers that do not fit {rows} rows, expected a valid CSR matrix")
    return indptr, indices, data, (rows, columns)
