"""Files of arrays: equal values are equal files."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from safetensors.numpy import load, save

from xmcbench.files.arrays import sort_header

TENSORS = {"b": np.arange(6, dtype=np.float32), "ä": np.ones(3, np.float32)}


def test_a_sorted_header_makes_equal_tensors_equal_files() -> None:
    found = set()
    for _ in range(16):
        file = BytesIO(save(TENSORS, {f"key {number}": "ü" for number in range(6)}))
        sort_header(file)
        found.add(file.getvalue())
    (content,) = found
    assert {name: array.tolist() for name, array in load(content).items()} == {
        name: array.tolist() for name, array in TENSORS.items()
    }


def test_a_header_that_would_grow_is_not_written() -> None:
    header = b'{"a":1e2}'
    file = BytesIO(len(header).to_bytes(8, "little") + header)
    before = file.getvalue()
    with pytest.raises(ValueError, match="the sorted header has 11 bytes, expected at most 9"):
        sort_header(file)
    assert file.getvalue() == before
