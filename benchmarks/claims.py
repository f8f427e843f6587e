"""The papers' claims beside what was measured: paper, measured difference, its uncertainty and power, and a verdict.

`claims.yaml` lists the claims: pairs of settings, of which a paper says which is better. The papers' numbers come from
the published rows, the measured ones from the trials of suites, all seeds of a suite together. A claim holds where the
95 % interval of the difference, over test queries and seeds, is above 0. It does not hold where the interval is below.
Where the interval contains 0 the claim is not decided, and the verdict says what difference the comparison could have
seen with 80 % power.

    python benchmarks/claims.py --data DIRECTORY --run    # trains first what the store lacks: hours on two cores
    python benchmarks/claims.py --store leaderboard/measured --only 'PRIME*'
    python benchmarks/claims.py --write leaderboard/claims.yaml    # also the states that the leaderboard shows
    python benchmarks/claims.py --store leaderboard/measured --markdown docs/claims.md    # also the table there
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from report import report, write_table

from xmcbench.data import load
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.bootstrap import Difference
from xmcbench.evaluation.comparison import ComparedMetric, Measured, compare_seeds
from xmcbench.evaluation.power import planned
from xmcbench.plugins.registry import registry
from xmcbench.reporting import PublishedRow, published_rows, read_claims
from xmcbench.reporting.claims import Claim, state_of, write_claims
from xmcbench.run.runner import Runner, Settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store
from xmcbench.trial.versions import SELECTION_VERSION, Versions

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
COLUMNS = ("claim", "paper", "measured", "seeds", "queries", "verdict")
VERDICTS = ("holds", "does not hold", "not decided", "not run")


@dataclass(frozen=True)
class Side:
    """The trials of one setting: one record for each seed, None where the trial did not end well or was not run."""

    label: str
    dataset: str
    seeds: tuple[int, ...]
    records: tuple[Record | None, ...]

    @property
    def ended(self) -> list[Record]:
        return [record for record in self.records if record is not None]


@dataclass(frozen=True)
class Outcome:
    """What was measured for a claim."""

    text: str
    verdict: str  # one of VERDICTS
    detectable: float  # the difference that is seen with 80 % power, a fraction
    seeds: int
    queries: int
    found: Difference | None = None  # better minus than; None where trials are missing
    sides: tuple[Side, ...] = ()  # better and than


class Trials:
    """What the store holds of the suites' trials."""

    def __init__(self, store: Path, data: Path, suites: Path = SUITES) -> None:
        self.store, self.data, self.suites = Store(store), data, suites
        self._sides = cache(self._read)

    def path(self, suite: str) -> Path:
        """The file of a suite."""
        return self.suites / f"{suite}.yaml"

    def side(self, suite: str, label: str, dataset: str | None = None) -> Side:
        """The trials of the setting `label` of a suite, on its first dataset unless another is named."""
        sides = self._sides(suite)
        datasets = list(dict.fromkeys(name for name, _ in sides))
        if (dataset or datasets[0]) not in datasets:
            raise UnknownNameError("dataset", str(dataset), datasets, f"in {self.path(suite)}")
        found = sides.get((dataset or datasets[0], label))
        if found is None:
            raise UnknownNameError("trial", label, {own for _, own in sides}, f"in {self.path(suite)}")
        return found

    def _read(self, suite: str) -> dict[tuple[str, str], Side]:
        settings = Settings(suite=self.path(suite), data=self.data, store=self.store.root)
        found: dict[tuple[str, str], list[tuple[Any, Record | None]]] = {}
        for step in Runner(settings).plan():
            record = step.record or self._of_older_code.get(step.trial.key_of_any_version)
            ended = record if record and record.status == Status.OK else None
            found.setdefault((step.trial.dataset, step.trial.label), []).append((step.trial, ended))
        return {
            (dataset, label): Side(label, dataset, tuple(t.seed for t, _ in own), tuple(r for _, r in own))
            for (dataset, label), own in found.items()
        }

    @cached_property
    def _of_older_code(self) -> dict[str, Record]:
        """The newest record of each trial by its key without versions; settings added since are at their defaults."""
        found: dict[str, Record] = {}
        for record in sorted(self.store.records(), key=lambda record: record.ended):
            trial = record.trial
            try:
                config = _config(record)
            except (ValidationError, XMCBenchError):  # a setting is gone
                continue
            found[trial.changed(config=config.model_dump(mode="json")).key_of_any_version] = record
        return found

    def replicates(self, record: Record, metric: str) -> Any:
        """The metric on the resamples of the test queries, [B]."""
        if metric not in record.metrics:
            raise UnknownNameError("metric", metric, record.metrics, f"trial {record.trial.label} ({record.key})")
        stored = self.store.resampled(record, [metric])
        if metric not in stored:
            raise XMCBenchError(f"trial {record.trial.label} ({record.key}): no resamples of {metric} are stored")
        return stored[metric]


def suites_of(claim: dict[str, Any]) -> list[str]:
    """The suite that trains the better setting, and that of the other."""
    return claim["suite"] if isinstance(claim["suite"], list) else [claim["suite"]] * 2


def printed(claim: dict[str, Any], rows: tuple[PublishedRow, ...]) -> tuple[str, float | None]:
    """What the paper says of the two settings in its own digits, and the difference; None where there is no table."""
    paper = claim["paper"]
    if "text" in paper:
        return str(paper["text"]), None
    tables, metric = paper["table"].split(", "), claim["metric"]
    near = {row.label: row for row in rows if row.source in tables and row.dataset == paper["dataset"]}
    for label in (paper["better"], paper["than"]):
        if label not in near:
            raise UnknownNameError("published row", label, near, f"in {paper['table']}, {paper['dataset']}")
    better, than = near[paper["better"]], near[paper["than"]]
    text = f"{better.printed[metric]} over {than.printed[metric]} ({paper['table']}, {paper['dataset']})"
    return text, better.metrics[metric] - than.metrics[metric]


def measured(claim: dict[str, Any], trials: Trials) -> Outcome:
    """What the trials of both settings say of the claim."""
    pairs = zip(suites_of(claim), (claim["better"], claim["than"]), strict=True)
    better, than = (trials.side(suite, label, claim.get("dataset")) for suite, label in pairs)
    if better.seeds != than.seeds:
        raise XMCBenchError(
            f"{claim['claim']}: {better.label} has the seeds {list(better.seeds)}, {than.label} {list(than.seeds)}"
        )
    queries, seeds = load(better.dataset, trials.data).card.num_test, len(better.seeds)
    missing = sum(record is None for record in (*better.records, *than.records))
    if missing:
        text = "not run" if missing == 2 * seeds else f"{missing} of {2 * seeds} trials are missing"
        return Outcome(text, "not run", planned(queries, seeds).detectable(), seeds, queries)
    metric = claim["metric"]
    seen = compared(better.ended, than.ended, metric, trials)
    found, (low, high) = seen.difference, seen.difference.interval
    text = (
        f"{better.dataset}: {metric} {100 * seen.first:.2f} over {100 * seen.second:.2f}, "
        f"{100 * found.value:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"
    )
    text += older(better, than)
    if "early" in claim:
        text += "; " + early(claim["early"], metric, better.ended, than.ended)
    verdict = "not decided" if not found.significant else "holds" if found.value > 0 else "does not hold"
    return Outcome(text, verdict, seen.detectable, seeds, queries, found, (better, than))


def compared(better: list[Record], than: list[Record], metric: str, trials: Trials) -> ComparedMetric:
    """The difference of two settings over all seeds."""
    sides = ([Measured(r.metrics, {metric: trials.replicates(r, metric)}) for r in side] for side in (better, than))
    (found,) = compare_seeds(*sides)
    return found


def older(*sides: Side) -> str:
    """A remark where trials ran on older versions of the code than what is installed; else empty."""
    records = [record for side in sides for record in side.ended]
    remarks = {record.older_than(_installed(record)) for record in records}
    known = "; ".join(sorted(remarks - {""}))
    return f" ({known})" if known else ""


def _installed(record: Record) -> Versions:
    """The versions of the installed code that a new trial with these settings would depend on."""
    selection = {"selection": SELECTION_VERSION} if record.trial.selection else {}
    return {**registry().method(record.trial.method).thing.versions(_config(record)), **selection}


def _config(record: Record) -> Any:
    return registry().method(record.trial.method).thing.Config.model_validate(record.trial.config)


def early(share: float, metric: str, better: list[Record], than: list[Record]) -> str:
    """Both on held-out training queries at the first evaluation after that share of the budget, means over seeds."""
    means, at = [], 0.0
    for records in (better, than):
        points = [next(point for point in record.curve if point["fraction"] >= share) for record in records]
        means.append(f"{100 * sum(point[metric] for point in points) / len(points):.2f}")
        at = points[0]["fraction"]
    return f"held out, at {at:.0%} of the budget {means[0]} over {means[1]}"


def verdict(outcome: Outcome, papers: float | None) -> str:
    """The verdict in words, with the power where the claim is not decided."""
    if outcome.verdict in ("holds", "does not hold"):
        return outcome.verdict
    of_paper = "" if papers is None else f", the paper's difference is {100 * abs(papers):.1f}"
    sees = "sees" if outcome.verdict == "not decided" else "will see"
    return f"{outcome.verdict}: {sees} {100 * outcome.detectable:.1f} points{of_paper}"


def leaderboard_claim(claim: dict[str, Any], outcome: Outcome) -> Claim:
    """The claim as the leaderboard shows it."""
    name = re.sub("[^a-z0-9]+", "-", claim["claim"].lower().replace("'", "")).strip("-")
    entry = {"id": name, "claim": claim["claim"], "metric": claim["metric"], "published": claim["paper"]}
    if outcome.found is None:
        return Claim.model_validate(entry)
    better, than = outcome.sides
    low, high = (f"{100 * end:+.2f}" for end in outcome.found.interval)
    entry["state"] = state_of((float(low), float(high)))
    entry["trials"] = {
        "suite": ", ".join(dict.fromkeys(suites_of(claim))),
        "dataset": better.dataset,
        "better": better.label,
        "than": than.label,
        "better_keys": [record.key for record in better.ended],
        "than_keys": [record.key for record in than.ended],
        "difference": f"{100 * outcome.found.value:+.2f}",
        "interval": (low, high),
    }
    return Claim.model_validate(entry)


def row(claim: dict[str, Any], outcome: Outcome, published: tuple[PublishedRow, ...]) -> dict[str, Any]:
    """The claim's line of the table."""
    paper, papers = printed(claim, published)
    cells = {"claim": claim["claim"], "paper": paper, "measured": outcome.text, "seeds": outcome.seeds}
    cells |= {"queries": outcome.queries, "verdict": verdict(outcome, papers)}
    return cells


def update(path: Path, claims: list[dict[str, Any]], outcomes: dict[str, Outcome]) -> None:
    """Write the claims of the leaderboard. Those whose trials are missing keep the entry that the file has."""
    known = {claim.id: claim for claim in read_claims(path)} if path.exists() else {}
    for claim in claims:
        found = leaderboard_claim(claim, outcomes[claim["claim"]]) if claim["claim"] in outcomes else None
        if found and (found.trials or found.id not in known):
            known[found.id] = found
    write_claims(known.values(), path)


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns for readers, of the claims whose trials are there."""
    return [{name: cells[name] for name in COLUMNS} for cells in rows if not cells["verdict"].startswith("not run")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--only", default="*", help="claims that match the pattern")
    parser.add_argument("--run", action="store_true", help="train what is missing first")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the leaderboard's claims")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into a Markdown file")
    options = parser.parse_args()
    claims = [c for c in yaml.safe_load((HERE / "claims.yaml").read_text()) if fnmatch(c["claim"], options.only)]
    trials, published = Trials(options.store, options.data), published_rows()
    rows, outcomes, problems = [], {}, []
    try:
        for suite in dict.fromkeys(suite for claim in claims for suite in suites_of(claim)) if options.run else ():
            command = ["xmcbench", "run", trials.path(suite), "--store", options.store, "--data", options.data]
            subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
    for claim in claims:
        try:
            outcomes[claim["claim"]] = outcome = measured(claim, trials)
            rows.append(row(claim, outcome, published))
        except XMCBenchError as problem:
            problems.append(f"{claim['claim']}: {problem}")
    if options.markdown:
        write_table("claims", shown(rows), options.markdown)
    if options.write:
        update(options.write, claims, outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes.values())
    report("claims", rows, options.out)
    print(", ".join(f"{verdicts[name]} {name}" for name in VERDICTS))
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
