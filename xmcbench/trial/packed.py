"""Packed trials: accepted results as files that a person reads, one record a line.

<root>/<dataset>/<suite>.jsonl         the records, a line each, sorted by method, label and seed
                 <suite>.safetensors   the bytes of their result files: uint8 arrays named `<key>/<file>`
<root>/<dataset>.safetensors           the metrics of configurations on resamples in few numbers (`compact_resamples`),
                                       by the keys of their seeds with a blank between

A line begins with the label, the method, the seed and the metrics. It gives back the record file to the byte, so that
the record's digest still holds. Records from before records held the digests of their files have them in `files`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from xmcbench.errors import XMCBenchError
from xmcbench.files.regular import open_regular, read_regular, with_names_once
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

RECORDS_BYTES = 50_000_000  # of one file, or of one record
PACK_BYTES = 1_000_000_000
LINES, PACK = ".jsonl", ".safetensors"
UNNAMED = "other"  # the file of records whose suite has no name that a file can have
OF_TRIAL = ("label", "method", "seed")  # fields of the trial that a line begins with, and
OF_RECORD = ("metrics", "key")  # of the record after them
RECORD_JSON = TypeAdapter(Any)  # writes numbers as record files have them


@dataclass(frozen=True)
class PackedRecord:
    """A record, and its file and line."""

    path: Path
    number: int  # of its line, from 1
    line: bytes
    content: bytes  # of the record file
    files: dict[str, str]  # SHA-256 of its files by name, where the record does not hold them

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


class Packed:
    """The packed trials below `root`, as they were when this was made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: dict[str, PackedRecord] = {}  # by key
        self.problems: list[str] = []  # of lines that cannot be read
        for path in sorted(root.glob(f"*/*{LINES}")):
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            lines = read_regular(path, RECORDS_BYTES).splitlines()
        except XMCBenchError as problem:
            self.problems.append(str(problem))
            return
        for number, line in enumerate(lines, start=1):
            try:
                key, content, files = record_of(line)
            except (ValueError, RecursionError) as problem:
                self.problems.append(f"{path}:{number}: not a record: {problem}".splitlines()[0])
                continue
            if key in self.records:
                self.problems.append(f"{path}:{number}: {key} is also in {self.records[key]}")
                continue
            self.records[key] = PackedRecord(path, number, line, content, files)

    def sizes(self, path: Path) -> dict[str, int]:
        """The numbers in each array of a pack; none if there is no such file. Raises XMCBenchError and OSError."""
        return _pack(path, take=lambda file, name: math.prod(file.get_slice(name).get_shape()))

    def arrays(self, path: Path) -> dict[str, np.ndarray]:
        """All arrays of a pack; none if there is no such file. Raises XMCBenchError and OSError."""
        return _pack(path)

    def has(self, key: str, name: str) -> bool:
        """Whether a result file of a trial is kept. Raises XMCBenchError and OSError."""
        return key in self.records and f"{key}/{name}" in self.sizes(self.records[key].path.with_suffix(PACK))

    def file(self, key: str, name: str) -> bytes | None:
        """The content of a result file of a trial, None if it is not kept. Raises XMCBenchError and OSError."""
        if key not in self.records:
            return None
        path = self.records[key].path.with_suffix(PACK)
        array = _pack(path, {f"{key}/{name}"}.__contains__).get(f"{key}/{name}")
        if array is None:
            return None
        if array.dtype != np.uint8 or array.ndim != 1:
            raise XMCBenchError(
                f"{path}: {key}/{name}: found {array.dtype} {array.shape}, expected the bytes of a file"
            )
        return bytes(array)

    def compact(self, key: str) -> np.ndarray | None:
        """Compact resamples, float32 [metrics, 2 C] in the order of the trial's metrics, where no others are kept.

        So it is in an installed xmcbench. They are of the mean over all seeds of its configuration. Raises
        XMCBenchError and OSError.
        """
        if key not in self.records or (path := self.records[key].path).with_suffix(PACK).exists():
            return None
        halves = _pack(compact_path(self.root, path.parent.name), lambda keys: key in keys.split()).values()
        return next((np.concatenate([half, -half], axis=1) for half in halves), None)


def compact_path(root: Path, dataset: str) -> Path:
    """The file of the compact resamples of a dataset's trials."""
    return root / f"{file_name(dataset)}{PACK}"


def record_of(line: bytes) -> tuple[str, bytes, dict[str, str]]:
    """The key, the record file and the digests in a line. Raises ValueError or RecursionError for any other line."""
    fields = json.loads(line, object_pairs_hook=with_names_once)
    if not isinstance(fields, dict) or not isinstance(fields.get("trial"), dict):
        raise ValueError("found no trial, expected a JSON object with one")
    key, files = fields.get("key"), fields.pop("files", {})
    if not isinstance(key, str) or not re.fullmatch(r"[0-9a-f]{16}", key):
        raise ValueError(f"key: found {key!r:.40}, expected 16 hexadecimal digits")
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise ValueError("files: expected digests by name")
    trial = fields["trial"] | {name: fields.pop(name) for name in OF_TRIAL if name in fields}
    record = fields | {"trial": _ordered(trial, Trial.model_fields)}
    return key, RECORD_JSON.dump_json(_ordered(record, [*Record.model_fields, "digest"]), indent=1) + b"\n", files


def _ordered(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields in the order of `names`, unknown ones last."""
    return {name: fields[name] for name in names if name in fields} | dict(fields)


def file_name(name: str) -> str:
    """The name of a dataset or suite as a file can have it."""
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name) else UNNAMED


def _pack(
    path: Path,
    wanted: Callable[[str], bool] = lambda _: True,
    take: Callable[[Any, str], Any] = lambda file, name: file.get_tensor(name),
) -> dict[str, Any]:
    """`take(file, name)` of each array of the pack at `path` whose name is wanted; none if there is no file."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return {}
    open_regular(path, PACK_BYTES).close()
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: take(file, name) for name in sorted(file.keys()) if wanted(name)}
    except SafetensorError as problem:
        raise XMCBenchError(f"{path}: damaged: {problem}".splitlines()[0]) from None
