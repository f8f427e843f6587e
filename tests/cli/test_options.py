"""Completion of the command line, as bash asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.bench import Bench

from xmcbench.suite.suite import bundled_names

SCRIPTS = Path(sys.executable).parent  # where the command is
# Install the completion as a user does, and call its function as bash does when Tab is pressed at the end of a line.
SET_UP = """set -e
xmcbench --install-completion
. ~/.bashrc
press_tab() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _xmcbench_completion xmcbench
    echo "${COMPREPLY[@]}"
}
complete -p xmcbench
"""


def offered(home: Path, *lines: str) -> list[list[str]]:
    """What bash offers for each of some lines, whose last word is unfinished."""
    script = SET_UP + "\n".join(f"press_tab {line}" for line in lines)
    paths = {"HOME": str(home), "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    bash = ["bash", "--norc", "-c", script]
    done = subprocess.run(bash, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, how, *answers = done.stdout.splitlines()
    assert how == "complete -o default -F _xmcbench_completion xmcbench"  # default: files where it offers nothing
    return [answer.split() for answer in answers]


@pytest.mark.long  # a process for each line
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_names(bench: Bench, tmp_path: Path) -> None:
    bench.run(bench.suite(["fake-ok", "fake-rare"]), debug=True)
    own = bench.root / "data" / "own"
    own.mkdir(parents=True)
    for name, truth in {"trn": ', "target_ind": [0]', "tst": ', "target_ind": [0]', "lbl": ""}.items():
        (own / f"{name}.json").write_text(f'{{"title": "a"{truth}}}\n')
    expected = {
        "xmcbench leaderb": ["leaderboard"],
        "xmcbench run ''": bundled_names(),
        "xmcbench leaderboard --method fake-rar": ["fake-rare"],
        f"xmcbench datasets show --data {own.parent} ow": ["own"],
        "xmcbench tune lf-wikise": ["lf-wikiseealso-320k"],
        "xmcbench check embedding-c": ["embedding-cache"],
        f"xmcbench show --store {bench.store.root} ''": ["fake-20/ok", "fake-20/rare"],
    }
    assert dict(zip(expected, offered(tmp_path, *expected), strict=True)) == expected
