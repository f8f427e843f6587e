"""Commands as users wait for them, beside `--help`, and what a trial takes beside its own work."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from peers import Places, Result
from report import in_turns, seconds_of
from trials import overhead

QUICKSTART = str(Path(__file__).parents[2] / "suites" / "quickstart.yaml")
XMCBENCH = Path(sysconfig.get_path("scripts")) / "xmcbench"
TURNS = 5  # of a command and of --help


def xmcbench(*arguments: str) -> None:
    """Run `xmcbench` with compiled modules, as users have them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([XMCBENCH, *arguments], capture_output=True, check=True, env=environment)


def results(places: Places) -> Iterator[Result]:
    cached = ("run", QUICKSTART, "--only", "tfidf-*", "--store", str(places.out / "cached"))
    xmcbench(*cached)
    for what, wanted, arguments in (
        ("methods", "under 2 x --help", ("methods",)),
        ("datasets", "under 2 x --help", ("datasets",)),
        ("run quickstart --dry-run", "under 2 x --help", ("run", QUICKSTART, "--dry-run")),
        ("a run of which all is cached", "under 1.5 s", cached),
    ):
        cases = {"it": partial(xmcbench, *arguments), "--help": partial(xmcbench, "--help")}
        seconds = in_turns(cases, 1 if places.quick else TURNS)
        yield Result(f"command: {what}", seconds["it"], "s", wanted, "--help", seconds["--help"])
    if not places.quick:
        whole = partial(xmcbench, "run", QUICKSTART, "--store", str(places.out / "quickstart"))
        yield Result("command: quickstart", seconds_of(whole), "s", "under 90 s")
    trials = 8 if places.quick else 200
    seconds = {row["what"]: row["value"] for row in overhead(trials)}
    what = "trial: seconds beside its own work"
    yield Result(what, seconds["overhead per trial"], "s", "under 1 s", f"{trials} trials in a row")
