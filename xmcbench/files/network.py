"""Keeps a method from the network, with an audit hook of Python.

The hook sees connections that Python's `socket` makes to other machines in this process, in any thread. It does not see
those of C libraries (such as the collectives of torch), nor those of other processes.
"""

from __future__ import annotations

import errno
import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

NAME = "audit hook"  # of this guard, for the record
_EVENTS = ("socket.connect", "socket.sendto")
_forbidden = _allowed = 0  # blocks that are open
_install = cache(lambda: sys.addaudithook(_hook))  # once: Python cannot remove it


@contextmanager
def forbid_network() -> Iterator[None]:
    """Refuse connections to other machines in the block, with `PermissionError`, outside `allow_network`."""
    global _forbidden
    _install()
    _forbidden += 1
    try:
        yield
    finally:
        _forbidden -= 1


@contextmanager
def allow_network() -> Iterator[None]:
    """Allow connections in the block: for a teacher that answers elsewhere, and for the download of an encoder."""
    global _allowed
    _allowed += 1
    try:
        yield
    finally:
        _allowed -= 1


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and _forbidden and not _allowed and not _is_local(arguments[1]):
        raise PermissionError(errno.EACCES, "no network while a method fits and predicts", str(arguments[1]))


def _is_local(address: Any) -> bool:
    """Whether a socket's address is on this machine: a loopback address, or no internet address at all."""
    if not isinstance(address, tuple) or not address:
        return True
    try:
        return address[0] == "localhost" or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    except ValueError:
        return False
