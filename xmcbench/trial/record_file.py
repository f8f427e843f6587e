"""A record as a file: JSON that ends with a digest of the content before it.

A record that was edited, truncated or damaged after it was written is refused, as is one of another schema. So a metric
is shown as it was computed, or not at all.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from xmcbench.errors import XMCBenchError
from xmcbench.trial.record import Record
from xmcbench.trial.trial import SCHEMA_VERSION

_START = b'{\n "schema_version": %d,' % SCHEMA_VERSION
_DIGEST = b',\n "digest": "'
_END = b'"\n}\n'


class RecordError(XMCBenchError):
    """The content of a file is not a valid record; the message gives the reason in one line."""


def encode(record: Record) -> bytes:
    """The file that holds `record`."""
    body = record.model_dump_json(indent=1).encode().removesuffix(b"\n}")
    return body + _DIGEST + _digest(body) + _END


def decode(content: bytes) -> Record:
    """The record in a file's content. Raises `RecordError` for other content, another schema, or a wrong digest."""
    body, _, end = content.rpartition(_DIGEST)
    try:
        if body.startswith(_START) and end == _digest(body) + _END:
            return Record.model_validate_json(body + b"\n}")  # unchanged and of this schema
        return Record.model_validate(_read(content))
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"not a record: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None


def _read(content: bytes) -> dict[str, Any]:
    """A record that was not laid out as `encode` does. Raises `RecordError`."""
    try:
        data: dict[str, Any] = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"not a record: not JSON: {problem}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise RecordError(
            f"not a record: found schema version {version!r}, expected {SCHEMA_VERSION}: another xmcbench wrote it"
        )
    _check_digest(content, data)
    return data


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def _check_digest(content: bytes, data: dict[str, Any]) -> None:
    """Remove the digest from `data`. Raises `RecordError` unless it matches the content before it."""
    if data.pop("digest", None) is None:
        raise RecordError("found no digest, expected one after the record: edited by hand")
    body, _, end = content.rpartition(_DIGEST)
    if end != _digest(body) + _END:
        raise RecordError("its digest does not match its content: edited after it was written")
