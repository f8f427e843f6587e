"""Commands as users wait for them, beside `--help`, and what a trial takes beside its own work."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from peers import Places, Result
from report import in_turns, run, seconds_of

QUICKSTART = str(Path(__file__).parents[2] / "suites" / "quickstart.yaml")
XMCBENCH = Path(sysconfig.get_path("scripts")) / "xmcbench"
TURNS = 5  # of a command and of --help
NANO = {"encoder": {"name": "nano"}, "batch_size": 32}
SMALL: dict[str, dict[str, Any]] = {"popular": {}, "tfidf-nn": {}, "dexml": NANO, "ova": NANO}


def xmcbench(*arguments: str) -> None:
    """Run `xmcbench` with compiled modules, as users have them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([XMCBENCH, *arguments], capture_output=True, check=True, env=environment)


def overhead(trials: int, store: Path) -> float:
    """Seconds of a trial of many small ones, less those of its ledger's stages."""
    methods = {name: {"method": name, **settings} for name, settings in SMALL.items()}
    suite = {"name": "small", "datasets": ["catalog-100"], "budget": {"steps": 3}, "methods": methods}
    start = time.perf_counter()
    records = run(suite | {"seeds": list(range(-(-trials // len(SMALL))))}, store)
    seconds = (time.perf_counter() - start) / len(records)
    return seconds - fmean(sum(record.spent["stage_seconds"].values()) for record in records)


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
    what, beside = "trial: seconds beside its own work", overhead(trials, places.out / "small")
    yield Result(what, beside, "s", "under 1 s", f"{trials} trials in a row")
