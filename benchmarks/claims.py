"""What became of the papers' claims: two rows of a table, every column, in several regimes, with the trials at hand.

`claims.yaml` fixes the claims before their trials run. The papers' columns come from the published rows, the measured
ones from the trials of suites with exactly the seeds that the file names. Differences and intervals are over test
queries and seeds (`xmcbench/evaluation/significance.py`). A sign is significant at 5 % after Holm's correction for all
the papers' claims in all regimes that have the metric. Trials that are missing count with p = 1, so that no sign gets
weaker when they come. Our own questions, and changes of a claim's difference under another condition, are corrected
among themselves.

    python benchmarks/claims.py --data DIRECTORY --run       # trains first what the store lacks, into `results`
    python benchmarks/claims.py --data DIRECTORY             # from accepted records: leaderboard/claims.yaml
    python benchmarks/claims_document.py                     # from that file: docs/claims.md and its figure
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xmcbench.data import load
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import Estimate, Sample, difference, difference_of_independent, holm
from xmcbench.plugins.registry import registry
from xmcbench.reporting import published_rows
from xmcbench.reporting.claims import (
    CLAIMS,
    Claim,
    ClaimFile,
    Column,
    PaperPair,
    Question,
    Regime,
    Scale,
    finding,
    write_claims,
)  # fmt: skip
from xmcbench.reporting.curated import Written, read_model
from xmcbench.reporting.numbers import folded
from xmcbench.reporting.published import ACCEPTED, PublishedRow
from xmcbench.reporting.rows import budget_text
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial
from xmcbench.trial.versions import SELECTION_VERSION, Versions

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
FEWEST_SEEDS = 5


class Pair(Written):
    """Two settings of a suite, on its first dataset unless one is named."""

    suite: str
    better: str
    than: str
    dataset: str | None = None


class PlannedClaim(Written):
    id: str
    claim: str
    paper: PaperPair
    here: list[Pair]
    shown: str | None = None
    remark: str = ""
    needs: str = ""


class PlannedQuestion(Written):
    id: str
    question: str
    here: Pair
    of: str = ""
    at: int = 0
    metrics: tuple[str, ...] = ()


class Plan(Written):
    """What is compared, with which seeds: fixed before any trial runs."""

    seeds: list[int]
    claims: list[PlannedClaim]
    questions: tuple[PlannedQuestion, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """The trials of a pair: a sample of either setting for each metric, none where trials are missing."""

    regime: Regime
    better: Mapping[str, Sample]
    than: Mapping[str, Sample]
    queries: str = ""  # identifies the test targets

    def estimate(self, metric: str) -> Estimate | None:
        if metric not in self.better:
            return None
        return difference(self.better[metric], self.than[metric])


class Trials:
    """What the store holds of the suites' trials."""

    def __init__(self, store: Path, data: Path, seeds: Sequence[int], suites: Path = SUITES) -> None:
        self.store, self.data, self.seeds, self.suites = Store(store), data, seeds, suites
        self._planned = cache(self._read)

    def attempt(self, pair: Pair, metrics: Sequence[str], rows: Sequence[PublishedRow] = ()) -> Attempt:
        """The trials of both settings; `rows` are those of the paper's better row, which has the paper's scale."""
        sides = [self._side(pair, label) for label in (pair.better, pair.than)]
        records = [[record for _, record in side if record] for side in sides]
        trial = sides[0][0][0]
        regime = Regime(suite=pair.suite, better=pair.better, than=pair.than, scale=self._scale(trial, rows))
        if any(len(found) < len(self.seeds) for found in records):
            return Attempt(regime, {}, {})
        samples = [stored_samples(self.store, found, metrics) for found in records]
        for found, of_side in zip(records, samples, strict=True):
            if missing := [metric for metric in metrics if metric not in of_side]:
                raise XMCBenchError(f"{pair.suite}: {found[0].trial.label} has no {', '.join(missing)} on resamples")
        keys = {"better_keys": tuple(r.key for r in records[0]), "than_keys": tuple(r.key for r in records[1])}
        regime = regime.model_copy(update={**keys, "older": _older([*records[0], *records[1]])})
        return Attempt(regime, samples[0], samples[1], records[0][0].truth_hash)

    def _side(self, pair: Pair, label: str) -> list[tuple[Trial, Record | None]]:
        planned = self._planned(pair.suite)
        datasets = list(dict.fromkeys(name for name, _ in planned))
        dataset = pair.dataset or datasets[0]
        if (dataset, label) not in planned:
            raise UnknownNameError(
                "trial", f"{dataset}/{label}", ["/".join(own) for own in planned], f"in {pair.suite}"
            )
        side = [(trial, record) for trial, record in planned[dataset, label] if trial.seed in self.seeds]
        if len(side) < len(self.seeds):
            raise XMCBenchError(f"{pair.suite}: {label} has the seeds {[t.seed for t, _ in side]} of {self.seeds}")
        return side

    def _scale(self, trial: Trial, rows: Sequence[PublishedRow]) -> Scale:
        encoder = trial.config.get("encoder") or {}
        name = " ".join(str(encoder[part]) for part in ("name", "words") if encoder.get(part)) or trial.method
        epochs = trial.budget.epochs or 0
        papers = any(
            row.dataset == trial.dataset and row.epochs and row.epochs <= epochs
            and row.encoder and folded(row.encoder) in folded(name)
            for row in rows
        )  # fmt: skip
        labels = load(trial.dataset, self.data).card.num_labels
        length = budget_text(trial.budget.limits())
        return Scale(dataset=trial.dataset, labels=labels, encoder=name, length=length, papers=papers)

    def _read(self, suite: str) -> dict[tuple[str, str], list[tuple[Trial, Record | None]]]:
        settings = Settings(suite=self.suites / f"{suite}.yaml", data=self.data, store=self.store.root)
        found: dict[tuple[str, str], list[tuple[Trial, Record | None]]] = defaultdict(list)
        for step in Runner(settings).plan():
            record = step.record or self._of_older_code.get(step.trial.key_of_any_version)
            ended = record if record and record.status == Status.OK else None
            found[step.trial.dataset, step.trial.label].append((step.trial, ended))
        return found

    @cached_property
    def _of_older_code(self) -> dict[str, Record]:
        """The newest record of each trial by its key without versions; settings added since are at their defaults."""
        found: dict[str, Record] = {}
        for record in sorted(self.store.records(), key=lambda record: record.ended):
            try:
                config = _config(record)
            except (ValidationError, XMCBenchError):  # a setting is gone
                continue
            found[record.trial.changed(config=config.model_dump(mode="json")).key_of_any_version] = record
        return found


def _older(records: Sequence[Record]) -> str:
    """The versions of older code that the records ran with; empty where they ran with what is installed."""
    return "; ".join(sorted({record.older_than(_installed(record)) for record in records} - {""}))


def _installed(record: Record) -> Versions:
    """The versions of the installed code that a new trial with these settings would depend on."""
    selection = {"selection": SELECTION_VERSION} if record.trial.selection else {}
    return {**registry().method(record.trial.method).thing.versions(_config(record)), **selection}


def _config(record: Record) -> Any:
    return registry().method(record.trial.method).thing.Config.model_validate(record.trial.config)


def read_plan(path: Path) -> Plan:
    """The claims of `claims.yaml`. Raises `XMCBenchError` with file, line and key of each mistake."""
    plan = read_model(Plan, path)
    if len(set(plan.seeds)) < FEWEST_SEEDS:
        raise XMCBenchError(f"{path}: seeds: found {plan.seeds}, expected {FEWEST_SEEDS} different ones or more")
    return plan


def corrected(families: Mapping[Any, Estimate | None], metric_of: Any) -> dict[Any, float]:
    """The p-values by the same keys, corrected within each metric. What is missing counts with p = 1."""
    by_metric: dict[str, list[Any]] = defaultdict(list)
    for key in families:
        by_metric[metric_of(key)].append(key)
    found = {}
    for keys in by_metric.values():
        estimates = [families[key] for key in keys]
        p_values = holm([1.0 if estimate is None else estimate.p for estimate in estimates])
        found |= dict(zip(keys, p_values, strict=True))
    return found


def column(metric: str, values: tuple[float, float], estimate: Estimate, p: float) -> Column:
    """A column in per cent; `p` is corrected."""
    sign = "?" if p >= 0.05 else "+" if estimate.value > 0 else "-"
    low, high = (f"{100 * end:+.2f}" for end in estimate.interval)
    better, than = (f"{100 * value:.2f}" for value in values)
    difference = f"{100 * estimate.value:+.2f}"
    return Column(metric=metric, better=better, than=than, difference=difference, interval=(low, high), sign=sign)


def columns(attempt: Attempt, metrics: Sequence[str], p_values: Mapping[str, float]) -> list[Column]:
    """The columns of an attempt whose trials are there."""
    found = ((metric, attempt.estimate(metric)) for metric in metrics)
    return [
        column(metric, (attempt.better[metric].mean, attempt.than[metric].mean), estimate, p_values[metric])
        for metric, estimate in found
        if estimate is not None
    ]


def change(here: Attempt, base: Attempt, metric: str) -> Estimate | None:
    """The difference of two pairs' differences; paired where test queries and seeds are the same."""
    if metric not in here.better or metric not in base.better:
        return None
    pairs = [(own.better[metric], own.than[metric]) for own in (here, base)]
    if here.queries == base.queries and all(better.seeds == than.seeds for better, than in pairs):
        return difference(*(better.minus(than) for better, than in pairs))
    return difference_of_independent(*(difference(*pair) for pair in pairs))


class Comparison:
    """All claims and questions against the trials at hand."""

    def __init__(self, plan: Plan, trials: Trials, published: Sequence[PublishedRow]) -> None:
        self.plan, self.trials, self.published = plan, trials, published
        self.problems: list[str] = []
        self.papers = {claim.id: claim.paper.printed(published) for claim in plan.claims}
        for claim in plan.claims:
            if not self.papers[claim.id]:
                raise XMCBenchError(f"{claim.id}: no dataset of {claim.paper.table} prints both rows")
        self.attempts = {
            (claim.id, place): self._attempt(claim.id, pair, list(self.papers[claim.id]), self._rows(claim))
            for claim in plan.claims
            for place, pair in enumerate(claim.here)
        }
        self.asked = {own.id: self._attempt(own.id, own.here, self._metrics(own), ()) for own in plan.questions}

    def _metrics(self, question: PlannedQuestion) -> list[str]:
        return list(question.metrics) or list(self.papers[question.of])

    def _rows(self, claim: PlannedClaim) -> list[PublishedRow]:
        return [row for row in self.published if claim.paper.is_about(row)]

    def _attempt(self, id: str, pair: Pair, metrics: Sequence[str], rows: Sequence[PublishedRow]) -> Attempt:
        try:
            return self.trials.attempt(pair, metrics, rows)
        except XMCBenchError as problem:  # no data at hand: not run here
            self.problems.append(f"{id}: {problem}")
            return Attempt(Regime(suite=pair.suite, better=pair.better, than=pair.than), {}, {})

    def claims(self) -> Iterator[Claim]:
        """The claims with what every regime says of them."""
        keys = [(*at, metric) for at in self.attempts for metric in self.papers[at[0]]]
        p_values = corrected({key: self.attempts[key[:2]].estimate(key[2]) for key in keys}, lambda key: key[2])
        for claim in self.plan.claims:
            papers, regimes = self.papers[claim.id], []
            for place in range(len(claim.here)):
                attempt = self.attempts[claim.id, place]
                own = tuple(columns(attempt, list(papers), {m: p_values[claim.id, place, m] for m in papers}))
                regimes.append(attempt.regime.model_copy(update={"columns": own, "finding": finding(own, papers)}))
            shown = claim.shown or next(iter(papers))
            yield Claim(
                id=claim.id,
                claim=claim.claim,
                paper=claim.paper,
                shown=shown,
                remark=claim.remark,
                needs=claim.needs,
                regimes=tuple(regimes),
            )

    def questions(self) -> Iterator[Question]:
        """The questions with their answers."""
        keys = [(own.id, metric) for own in self.plan.questions for metric in self._metrics(own)]
        planned = {own.id: own for own in self.plan.questions}
        p_values = corrected({key: self.asked[key[0]].estimate(key[1]) for key in keys}, lambda key: key[1])
        changes = {
            (id, metric): change(self.asked[id], self.attempts[planned[id].of, planned[id].at], metric)
            for id, metric in keys
            if planned[id].of
        }
        p_of_changes = corrected(changes, lambda key: key[1])
        for own in self.plan.questions:
            metrics, attempt = self._metrics(own), self.asked[own.id]
            found = tuple(columns(attempt, metrics, {metric: p_values[own.id, metric] for metric in metrics}))
            papers = self.papers[own.of] if own.of else {metric: {"": 1.0} for metric in metrics}
            regime = attempt.regime.model_copy(update={"columns": found, "finding": finding(found, papers)})
            changed = []
            for metric in metrics if own.of else ():
                if (estimate := changes[own.id, metric]) is not None:
                    base = self.attempts[own.of, own.at].estimate(metric)
                    here = attempt.estimate(metric)
                    assert base is not None
                    assert here is not None
                    changed.append(column(metric, (here.value, base.value), estimate, p_of_changes[own.id, metric]))
            yield Question(id=own.id, question=own.question, of=own.of, regime=regime, changes=tuple(changed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="default: the accepted results; with --run: results")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--run", action="store_true", help="train what is missing first")
    parser.add_argument("--write", type=Path, metavar="FILE", default=CLAIMS)
    options = parser.parse_args()
    store = options.store or (Path("results") if options.run else ACCEPTED)
    try:
        plan = read_plan(HERE / "claims.yaml")
        pairs = [pair for claim in plan.claims for pair in claim.here] + [own.here for own in plan.questions]
        for suite in dict.fromkeys(pair.suite for pair in pairs) if options.run else ():
            command = ["xmcbench", "run", SUITES / f"{suite}.yaml", "--store", store, "--data", options.data]
            subprocess.run(command, check=True)
        compared = Comparison(plan, Trials(store, options.data, plan.seeds), published_rows())
        file = ClaimFile(claims=tuple(compared.claims()), questions=tuple(compared.questions()))
    except (XMCBenchError, subprocess.CalledProcessError) as problem:
        sys.exit(str(problem))
    write_claims(file, options.write)
    for line in (*map(str, file.claims), *dict.fromkeys(compared.problems)):
        print(line)


if __name__ == "__main__":
    main()
