"""What became of the papers' claims: two rows of a table, every column, in several regimes, with the trials at hand.

`claims.yaml` fixes the claims before their trials run. The papers' columns come from the published rows, the measured
ones from the trials of suites with exactly the seeds that the file names. Differences and intervals are over test
queries and seeds (`xmcbench/evaluation/significance.py`). A sign is significant at 5 % after Holm's correction for all
the papers' claims in all regimes that have the metric. Trials that are missing count with p = 1, so that no sign gets
weaker when they come. Our own questions, and changes of a claim's difference under another condition, are corrected
among themselves.

    python benchmarks/claims.py --data DIRECTORY                    # from accepted records: leaderboard/claims.yaml
    python benchmarks/claims.py --data DIRECTORY --store results    # from trials of `xmcbench run` of the suites
    python benchmarks/findings.py                                   # from that file: docs/claims.md and its figure
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from xmcbench.data import load
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.evaluation.bootstrap import LEVEL
from xmcbench.evaluation.comparison import stored_samples
from xmcbench.evaluation.significance import Estimate, Relation, Sample, difference, holm, relation_shown
from xmcbench.files.atomic import atomic_write
from xmcbench.files.yaml_lines import read_model
from xmcbench.plugins.registry import registry
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.published import published_rows
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import folded
from xmcbench.runs.runner import Runner, Settings
from xmcbench.trial.record import Record, Status
from xmcbench.trial.record_fields import Frozen
from xmcbench.trial.store import Store
from xmcbench.trial.trial import Trial
from xmcbench_plugins.board.claims import (
    CLAIMS,
    Claim,
    ClaimFile,
    Column,
    Finding,
    PaperPair,
    Question,
    Regime,
    Scale,
    Sign,
)
from xmcbench_plugins.board.results import ACCEPTED

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
FEWEST_SEEDS = 5
HEADER = "# Written by benchmarks/claims.py from accepted records. docs/leaderboard.md explains it.\n"


class Pair(Frozen):
    """Two settings of a suite, on its first dataset unless one is named."""

    suite: str
    better: str
    than: str
    dataset: str | None = None


class PlannedClaim(Frozen):
    id: str
    claim: str
    paper: PaperPair
    here: list[Pair]
    shown: str | None = None
    remark: str = ""
    needs: str = ""


class PlannedQuestion(Frozen):
    id: str
    question: str
    here: Pair
    of: str = ""
    at: int = 0
    metrics: tuple[str, ...] = ()


class Plan(Frozen):
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
        return difference(self.better[metric], self.than[metric]) if metric in self.better else None

    def judged(
        self, papers: Mapping[str, dict[str, float]], shown: str, p_values: Mapping[Any, float], *key: Any
    ) -> Regime:
        """The regime with its columns and what `shown` says; `p_values` has those of the key and the metric."""
        found = ((metric, self.estimate(metric)) for metric in papers)
        columns = tuple(
            column(metric, self.better[metric].mean, self.than[metric].mean, own, p_values[*key, metric])
            for metric, own in found
            if own is not None
        )
        return self.regime.model_copy(update={"columns": columns, "finding": finding_shown(columns, papers, shown)})


class Trials:
    """What the store holds of the suites' trials."""

    def __init__(self, store: Path, data: Path, seeds: Sequence[int], suites: Path = SUITES) -> None:
        self.store, self.data, self.seeds, self.suites = Store(store), data, seeds, suites
        self._planned = cache(self._read)

    def attempt(self, pair: Pair, metrics: Sequence[str], rows: Sequence[PublishedRow] = ()) -> Attempt:
        """The trials of both settings; `rows` are those of the paper's better row, which has the paper's scale."""
        sides = [self._side(pair, label) for label in (pair.better, pair.than)]
        scale = self._scale(sides[0][0][0], rows)
        regime = Regime(suite=pair.suite, better=pair.better, than=pair.than, scale=scale)
        records = [[record for _, record in side if record] for side in sides]
        if any(len(found) < len(self.seeds) for found in records):
            return Attempt(regime, {}, {})
        samples = [stored_samples(self.store, found, metrics) for found in records]
        for found, of_side in zip(records, samples, strict=True):
            if missing := [metric for metric in metrics if metric not in of_side]:
                raise XMCBenchError(f"{pair.suite}: {found[0].trial.label} has no {', '.join(missing)} on resamples")
        better, than = (tuple(record.key for record in found) for found in records)
        older = {record.older_than(trial.versions) for side in sides for trial, record in side if record} - {""}
        keys = {"better_keys": better, "than_keys": than, "older": "; ".join(sorted(older))}
        return Attempt(regime.model_copy(update=keys), samples[0], samples[1], records[0][0].truth_hash)

    def _side(self, pair: Pair, label: str) -> list[tuple[Trial, Record | None]]:
        planned = self._planned(pair.suite)
        dataset = pair.dataset or next(iter(planned))[0]
        if (dataset, label) not in planned:
            known = ["/".join(own) for own in planned]
            raise UnknownNameError("trial", f"{dataset}/{label}", known, f"in {pair.suite}")
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
            with suppress(ValidationError, XMCBenchError):  # a setting is gone
                settings = registry().method(record.trial.method).thing.Config.model_validate(record.trial.config)
                found[record.trial.changed(config=settings.model_dump(mode="json")).key_of_any_version] = record
        return found


def read_plan(path: Path) -> Plan:
    """The claims of `claims.yaml`. Raises `XMCBenchError` with file, line and key of each mistake."""
    plan = read_model(Plan, path)
    if len(set(plan.seeds)) < FEWEST_SEEDS:
        raise XMCBenchError(f"{path}: seeds: found {plan.seeds}, expected {FEWEST_SEEDS} different ones or more")
    return plan


def corrected(families: Mapping[Any, Estimate | None]) -> dict[Any, float]:
    """The p-values by the same keys, corrected within each metric, which ends a key. What is missing has p = 1."""
    found: dict[Any, float] = {}
    for metric in {key[-1] for key in families}:
        family = {key: 1.0 if own is None else own.p for key, own in families.items() if key[-1] == metric}
        found |= zip(family, holm(list(family.values())), strict=True)
    return found


SIGNS: dict[Relation, Sign] = {Relation.ABOVE: "+", Relation.BELOW: "-", Relation.UNDECIDED: "?"}


def column(metric: str, better: float, than: float, estimate: Estimate, p: float) -> Column:
    """A column in per cent; `p` is corrected."""
    sign = SIGNS[relation_shown(estimate, p < 1 - LEVEL)]
    low, high, difference = (f"{100 * value:+.2f}" for value in (*estimate.interval, estimate.value))
    values = {"better": f"{100 * better:.2f}", "than": f"{100 * than:.2f}", "difference": difference}
    return Column(metric=metric, **values, interval=(low, high), sign=sign)


def difference_of_independent(first: Estimate, second: Estimate) -> Estimate:
    """The first value minus the second, of different test queries and trials."""
    seed_error = math.hypot(first.seed_error, second.seed_error)
    parts = [own.seed_error**4 / own.seed_freedom for own in (first, second) if own.seed_error]
    freedom = seed_error**4 / sum(parts) if parts else min(first.seed_freedom, second.seed_freedom)
    return Estimate(first.value - second.value, math.hypot(first.query_error, second.query_error), seed_error, freedom)


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
        self.plan, self.trials = plan, trials
        self.problems: list[str] = []
        self.papers = {claim.id: claim.paper.printed(published) for claim in plan.claims}
        self.attempts: dict[tuple[str, int], Attempt] = {}
        for claim in plan.claims:
            if not self.papers[claim.id]:
                raise XMCBenchError(f"{claim.id}: no dataset of {claim.paper.table} prints both rows")
            rows = [row for row in published if claim.paper.is_about(row)]
            for place, pair in enumerate(claim.here):
                self.attempts[claim.id, place] = self._attempt(claim.id, pair, list(self.papers[claim.id]), rows)
        self.asked = {own.id: self._attempt(own.id, own.here, list(self._papers(own)), ()) for own in plan.questions}

    def _papers(self, question: PlannedQuestion) -> dict[str, dict[str, float]]:
        """What the paper prints of the metrics of a question: for one of our own, that the first setting is better."""
        papers = self.papers[question.of] if question.of else {}
        return {metric: papers.get(metric, {"": 1.0}) for metric in question.metrics or papers}

    def _attempt(self, id: str, pair: Pair, metrics: Sequence[str], rows: Sequence[PublishedRow]) -> Attempt:
        try:
            return self.trials.attempt(pair, metrics, rows)
        except XMCBenchError as problem:  # no data at hand: not run here
            self.problems.append(f"{id}: {problem}")
            return Attempt(Regime(suite=pair.suite, better=pair.better, than=pair.than), {}, {})

    def claims(self) -> Iterator[Claim]:
        """The claims with what every regime says of them."""
        p_values = corrected(
            {(*at, metric): own.estimate(metric) for at, own in self.attempts.items() for metric in self.papers[at[0]]}
        )
        for claim in self.plan.claims:
            papers = self.papers[claim.id]
            shown = claim.shown or next(iter(papers))
            places = ((claim.id, place) for place in range(len(claim.here)))
            regimes = tuple(self.attempts[at].judged(papers, shown, p_values, *at) for at in places)
            written = claim.model_dump(include={"id", "claim", "remark", "needs"})
            yield Claim(**written, paper=claim.paper, shown=shown, regimes=regimes)

    def questions(self) -> Iterator[Question]:
        """The questions with their answers."""
        asked = [(own, metric) for own in self.plan.questions for metric in self._papers(own)]
        p_values = corrected({(own.id, metric): self.asked[own.id].estimate(metric) for own, metric in asked})
        changes = {
            (own.id, metric): change(self.asked[own.id], self.attempts[own.of, own.at], metric)
            for own, metric in asked
            if own.of
        }
        p_of_changes = corrected(changes)
        for own in self.plan.questions:
            here, papers, changed = self.asked[own.id], self._papers(own), []
            for metric in papers if own.of else ():
                estimate, base = changes[own.id, metric], self.attempts[own.of, own.at].estimate(metric)
                if estimate and base and (mine := here.estimate(metric)):
                    changed.append(column(metric, mine.value, base.value, estimate, p_of_changes[own.id, metric]))
            named = next((claim.shown for claim in self.plan.claims if claim.id == own.of), None)
            regime = here.judged(papers, named if named in papers else next(iter(papers)), p_values, own.id)
            yield Question(id=own.id, question=own.question, of=own.of, regime=regime, changes=tuple(changed))


def papers_sign(differences: dict[str, float]) -> Sign:
    """The sign of a column that the paper prints on every dataset; ? where its datasets disagree."""
    signs = {"+" if value > 0 else "-" if value < 0 else "?" for value in differences.values()}
    return "+" if signs == {"+"} else "-" if signs == {"-"} else "?"


def finding_shown(columns: Sequence[Column], papers: Mapping[str, dict[str, float]], shown: str) -> Finding:
    """What the metric that a claim names says of it: the other columns are what else moved, and decide nothing."""
    if not columns:
        return "not run yet"
    ours, theirs = next(own.sign for own in columns if own.metric == shown), papers_sign(papers[shown])
    if "?" in (ours, theirs):
        return "undecided"
    return "seen" if ours == theirs else "not seen"


def write_claims(file: ClaimFile, path: Path) -> None:
    """Write a file of claims that `read_claims` reads."""
    content = file.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    with atomic_write(path) as out:
        out.write(f"{HEADER}{text}".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=ACCEPTED, help="default: the accepted results")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--write", type=Path, metavar="FILE", default=CLAIMS)
    options = parser.parse_args()
    try:
        plan = read_plan(HERE / "claims.yaml")
        compared = Comparison(plan, Trials(options.store, options.data, plan.seeds), published_rows())
        file = ClaimFile(claims=tuple(compared.claims()), questions=tuple(compared.questions()))
    except XMCBenchError as problem:
        sys.exit(str(problem))
    write_claims(file, options.write)
    for line in (*map(str, file.claims), *dict.fromkeys(compared.problems)):
        print(line)


if __name__ == "__main__":
    main()
