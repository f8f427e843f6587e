"""Writes packed trials, which `xmcbench/trial/packed.py` describes and reads."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xmcbench.files.atomic import atomic_write
from xmcbench.trial.packed import LINES, OF_RECORD, OF_TRIAL, PACK, RECORD_JSON, Packed, file_name
from xmcbench.trial.record import Record


def packed_path(root: Path, record: Record) -> Path:
    """The file that holds the record: one for each dataset and suite."""
    return root / file_name(record.trial.dataset) / f"{file_name(record.suite)}{LINES}"


def add_packed(root: Path, trials: Iterable[tuple[Record, bytes, Mapping[str, bytes]]]) -> list[Path]:
    """Add trials (record, record file, result files by name), in place of those of the same keys.

    Returns the files of their lines, which are written last. One process at a time may write.
    """
    known = Packed(root)
    lines: dict[Path, dict[str, bytes]] = defaultdict(dict)
    for key, packed in known.records.items():
        lines[packed.path][key] = packed.line
    keys: dict[str, Path] = {}  # of the trials, with the files that get them
    arrays: dict[Path, dict[str, np.ndarray]] = defaultdict(dict)
    changed: set[Path] = set()
    for record, content, files in trials:
        if before := known.records.get(record.key):
            lines[before.path].pop(record.key, None)
            changed.add(before.path)
        path = keys[record.key] = packed_path(root, record)
        lines[path][record.key] = line_of(content)
        arrays[path] |= {f"{record.key}/{name}": np.frombuffer(data, np.uint8) for name, data in files.items()}
    for path in changed | set(keys.values()):
        _write_file(known, path, lines[path], {key for key in lines[path] if key not in keys}, arrays[path])
    return list(dict.fromkeys(keys.values()))


def remove_packed(root: Path, keys: Collection[str]) -> list[Path]:
    """Remove trials; returns the files that held them. One process at a time may write.

    A trial's line goes last: a removal that is killed finds it again.
    """
    known = Packed(root)
    changed = list(dict.fromkeys(known.records[key].path for key in keys))
    for path in changed:
        left = {key: own.line for key, own in known.records.items() if own.path == path and key not in keys}
        _write_file(known, path, left, left.keys(), {})
    return changed


def _write_file(
    known: Packed, path: Path, lines: Mapping[str, bytes], kept: Collection[str], more: dict[str, np.ndarray]
) -> None:
    """Write the file `path` with the lines of its trials, and before it its pack: the arrays of `kept`, and `more`."""
    stored = known.arrays(path.with_suffix(PACK))
    write_arrays(
        path.with_suffix(PACK), {name: own for name, own in stored.items() if name.partition("/")[0] in kept} | more
    )
    if not lines:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.write(b"".join(line + b"\n" for line in sorted_lines(lines.values())))


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as a safetensors file; none: remove it."""
    from safetensors.numpy import save

    if not arrays:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.write(save(dict(sorted(arrays.items()))))


def sorted_lines(lines: Iterable[bytes]) -> list[bytes]:
    """The lines by method, label, seed and key."""

    def order(line: bytes) -> tuple[str, str, int, str]:
        fields = json.loads(line)
        return str(fields["method"]), str(fields["label"]), int(fields["seed"]), str(fields["key"])

    return sorted(lines, key=order)


def line_of(content: bytes, files: Mapping[str, str] | None = None) -> bytes:
    """The line of a record file, with the digests of its files where the record does not hold them."""
    record: dict[str, Any] = json.loads(content)
    trial = record["trial"]
    first = {name: trial.pop(name) for name in OF_TRIAL} | {name: record.pop(name) for name in OF_RECORD}
    digest = {"digest": record.pop("digest")}
    return RECORD_JSON.dump_json(first | record | ({"files": dict(files)} if files else {}) | digest)
