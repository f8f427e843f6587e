"""Commands of xmcbench, run in this process."""

from __future__ import annotations

import pytest

from xmcbench.cli import main


def call(*arguments: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    capsys.readouterr()
    return call(*arguments), *capsys.readouterr()
