"""The papers' qualitative claims beside what was measured: a table of claim, paper, measured, and whether it holds.

The claims are in `claims.yaml`: pairs of settings, of which the paper says which is better. What a paper prints comes
from the published rows, what was measured from the trials of suites. Measured figures are compared by a paired
bootstrap over test queries: a claim holds where the 95 % interval of the difference is above 0, does not where it is
below, and is open where it holds 0.

    python benchmarks/claims.py --data DIRECTORY --run    # trains first what the store lacks: hours on two cores
    python benchmarks/claims.py --store results --only 'PRIME*'
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from report import report

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.comparison import compare_resampled
from xmcbench.reporting import PublishedRow, published_rows
from xmcbench.run.runner import Runner, Settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"


class Trials:
    """What the store holds of each suite, by label."""

    def __init__(self, store: Path, data: Path) -> None:
        self.store, self.data = Store(store), data
        self.of = cache(self._of)

    def _of(self, suite: str) -> dict[str, Record | None]:
        settings = Settings(suite=path(suite), data=self.data, store=self.store.root)
        return {step.trial.label: step.record for step in Runner(settings).plan()}

    def find(self, suite: str, label: str) -> Record | None:
        """The trial's record; None where it has not run to its end."""
        known = self.of(suite)
        if label not in known:
            raise UnknownNameError("trial", label, known, f"in {path(suite)}")
        record = known[label]
        return record if record and record.status == Status.OK else None


def path(suite: str) -> Path:
    return SUITES / f"{suite}.yaml"


def suites_of(claim: dict[str, Any]) -> list[str]:
    """The suite that trains the better setting, and that of the other."""
    return claim["suite"] if isinstance(claim["suite"], list) else [claim["suite"]] * 2


def printed(claim: dict[str, Any], rows: tuple[PublishedRow, ...]) -> str:
    """What the paper says of the two settings, in its own digits."""
    paper = claim["paper"]
    if "text" in paper:
        return str(paper["text"])
    tables = paper["table"].split(", ")
    near = {row.label: row for row in rows if row.source in tables and row.dataset == paper["dataset"]}
    figures = []
    for label in (paper["better"], paper["than"]):
        if label not in near:
            raise UnknownNameError("published row", label, near, f"in {paper['table']}, {paper['dataset']}")
        figures.append(near[label].printed[claim["metric"]])
    return f"{figures[0]} over {figures[1]} ({paper['table']}, {paper['dataset']})"


def measured(claim: dict[str, Any], trials: Trials) -> tuple[str, str]:
    """What was measured, and whether the claim holds."""
    pairs = zip(suites_of(claim), (claim["better"], claim["than"]), strict=True)
    better, than = (trials.find(suite, label) for suite, label in pairs)
    if better is None or than is None:
        return "not run", "-"
    metric = claim["metric"]
    kept = trials.store.resampled(better, [metric]), trials.store.resampled(than, [metric])
    figures = tuple({metric: record.metrics[metric]} for record in (better, than))
    [found] = compare_resampled((figures[0], figures[1]), kept)
    difference = found.difference
    low, high = difference.interval
    text = (
        f"{better.trial.dataset}: {metric} {100 * found.first:.2f} over {100 * found.second:.2f}, "
        f"{100 * difference.value:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
    )
    if "early" in claim:
        text += "; " + early(claim["early"], metric, better, than)
    return text, "open" if not difference.significant else "yes" if difference.value > 0 else "no"


def early(share: float, metric: str, better: Record, than: Record) -> str:
    """Both on held-out training queries at the first look after that share of the budget."""
    figures, at = [], 0.0
    for record in (better, than):
        point = next(point for point in record.curve if point["fraction"] >= share)
        figures.append(f"{100 * point[metric]:.2f}")
        at = point["fraction"]
    return f"held out, at {at:.0%} of the budget {figures[0]} over {figures[1]}"


def rows(claims: list[dict[str, Any]], trials: Trials) -> Iterator[dict[str, Any]]:
    published = published_rows()
    for claim in claims:
        figures, holds = measured(claim, trials)
        yield {"claim": claim["claim"], "paper": printed(claim, published), "measured": figures, "holds?": holds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--only", default="*", help="claims that match the pattern")
    parser.add_argument("--run", action="store_true", help="train what is missing first")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    claims = [
        claim for claim in yaml.safe_load((HERE / "claims.yaml").read_text()) if fnmatch(claim["claim"], asked.only)
    ]
    try:
        for suite in dict.fromkeys(suite for claim in claims for suite in suites_of(claim)) if asked.run else ():
            subprocess.run(["xmcbench", "run", path(suite), "--store", asked.store, "--data", asked.data], check=True)
        report("claims", list(rows(claims, Trials(asked.store, asked.data))), asked.out)
    except (XMCBenchError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
