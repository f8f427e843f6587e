"""What a secret is, and how text is stripped of it: the one place for messages, records, logs, provenance, trackers.

A secret is the user and password of a URL, the value of an environment variable or setting with a name such as
`API_KEY` or `TOKEN`, a header `Authorization`, a private key, or text of the form of a well-known token.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast
from urllib.parse import unquote, urlsplit

MASK = "***"
READ = 64 * 1024  # characters or bytes that are read beyond a cut, so that a secret there is whole
SHORTEST = 8  # characters of the value of a variable; a shorter one may be any word

_NAME = (
    r"(?:(?:api|access|private|secret)[_-]?key|secret|passw(?:or)?d|(?:[a-z]+[_-])?token|authorization)"  # of a setting
)
_VARIABLE = re.compile(r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_ID)?$", re.IGNORECASE)
_SETTING = re.compile(rf"(?:.*[_-])?{_NAME}", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/?#@'\"]+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"(authorization[\"']?\s*[=:]\s*[\"']?(?:Basic|Bearer|Token)\s+)[^\s\"']+", re.IGNORECASE),
     rf"\1{MASK}"),
    (re.compile(r"\bBearer\s+[A-Za-z0-9+/=._~-]{6,}"), f"Bearer {MASK}"),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}|\bhf_[A-Za-z0-9]{12,}|\b(?:gh[opsur]|glpat|github_pat|xox[abprs])[_-]"
                r"[A-Za-z0-9_-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{20,}"
                r"|(?<![\w-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}"), MASK),
    (re.compile(rf"((?<![a-z0-9]){_NAME}[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*|unknown key)(?!(?:Bearer|Basic|Token)\s)"
                r"[^\s\"'&,;{}]{4,}",
                re.IGNORECASE), rf"\1{MASK}"),
)  # fmt: skip
_remembered: set[str] = set()


def remember(secret: str) -> None:
    """Strip `secret` too from now on, in this process: a key from a variable whose name says nothing."""
    _remembered.add(secret)


def holds_secret(content: bytes) -> bool:
    """Whether bytes contain a secret that this process has read."""
    return any(value.encode() in content for value in _remembered if len(value) >= SHORTEST)


def redact(text: str) -> str:
    """`text` with `***` in place of every secret.

    >>> redact("POST http://me:pass@host/v1?api_key=1234 failed, Authorization: Bearer abcdef")
    'POST http://***@host/v1?api_key=*** failed, Authorization: Bearer ***'
    >>> redact("encoder_tokens: 4000, found token 'x'")
    "encoder_tokens: 4000, found token 'x'"
    >>> redact("encoder_token: unknown key")
    'encoder_token: unknown key'
    """
    return _stripped(text, _values())


def _stripped(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def beginning(text: str, length: int) -> str:
    """The first `length` characters of `text` without its secrets. Part of a secret that was cut is not known as one.

    >>> beginning("password=12345678 was refused", 12)
    'password=***'
    """
    return redact(text[: length + READ])[:length]


def end_of_file(path: Path, length: int) -> str:
    """The last whole lines of a text file, without its secrets, of at most `length` characters.

    Only the end of a longer last line is left. Raises OSError.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - length - READ)
        file.seek(start)
        text = file.read(length + READ).decode(errors="replace")
    text = redact(_after_line(text) if start else text)
    return text if len(text) <= length else _after_line(text[-length:])


def _after_line(text: str) -> str:
    """What follows the first line, which was cut; all of the text if nothing does."""
    return text.partition("\n")[2] or text


def redacted(value: Any) -> Any:
    """A copy of nested lists and mappings of which every text is stripped of secrets."""
    secrets = _values()  # once: the environment may have a hundred variables, and a record has as many texts

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return _stripped(value, secrets)
        if isinstance(value, dict):
            return {
                _stripped(str(key), secrets): MASK if _is_named_secret(key, item) else clean(item)
                for key, item in value.items()
            }
        return [clean(item) for item in value] if isinstance(value, list | tuple) else value

    return clean(value)


def is_secret(name: str, value: Any) -> bool:
    """Whether `value` is the secret of a setting called `name`, or a text that holds a secret.

    >>> is_secret("api_key", "1234"), is_secret("key_variable", "OPENAI_API_KEY"), is_secret("x", "http://a:b@c")
    (True, False, True)
    """
    return _is_named_secret(name, value) or (isinstance(value, str) and redact(value) != value)


def _is_named_secret(name: Any, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and bool(_SETTING.fullmatch(str(name)))


def _values() -> list[str]:
    """The secrets in this process's environment, and those that were remembered, the longest first."""
    secrets = set(_remembered)
    for name, value in os.environ.items():
        if _VARIABLE.search(name):
            secrets.add(value)
        elif "://" in value and "@" in value:
            with suppress(ValueError):
                secrets.add(unquote(urlsplit(value).password or ""))
    return sorted((secret for secret in secrets if len(secret) >= SHORTEST), key=len, reverse=True)


class RedactingStream:
    """A text stream that strips what is written of secrets, line by line. A secret must not be split over writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """Strip what this process prints of secrets, as long as it prints through `sys.stdout` and `sys.stderr`."""
    sys.stdout = cast("TextIO", RedactingStream(sys.stdout))
    sys.stderr = cast("TextIO", RedactingStream(sys.stderr))
