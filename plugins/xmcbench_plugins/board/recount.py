"""Counts the costs of a finished trial again, from its settings and its data alone, as a plan does.

A plan is right to a few per cent, except where negatives depend on the embeddings as training moves them: queries that
share mined negatives have smaller pools, so that a budget of operations lasts for more steps. Steps, tokens
and operations that it confirms are recounted; all others are what the submitter states, as seconds and memory are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pydantic import ValidationError

from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.planning.trials import Planner
from xmcbench.errors import XMCBenchError
from xmcbench.trial.budget import excused_step
from xmcbench.trial.facts import why_ended
from xmcbench.trial.method import build_method
from xmcbench.trial.record import Record
from xmcbench.trial.trial import Trial

ROUNDING = 1e-9
CLOSE = 0.1  # share of a plan that a recounted cost may differ by
LEAST = 0.5  # of a plan: less is no trial with these settings
MOST = 10.0  # times a plan: queries of a batch that share mined negatives have smaller pools, so that more steps fit
COSTS = ("steps", "encoder_tokens", "flops")  # that a plan confirms
MOST_EPOCHS = 10_000  # of a trial that is counted again


@dataclass(frozen=True)
class Recount:
    """The stated costs of a trial as shares of those that a plan counts; or why there is no plan."""

    shares: dict[str, float] = field(default_factory=dict)
    part: float = 1.0  # of the budget, which a plan counts: training the encoder below a second stage
    reason: str = ""
    wrong: str = ""  # why no trial with these settings can have run

    def __str__(self) -> str:
        if self.reason:
            return f"not recounted: {self.reason}"
        if self.part < 1:
            return "not recounted: a plan counts only the training below its second stage"
        costs = [share for name, share in self.shares.items() if name.split()[0] in COSTS]
        furthest = max(costs, key=lambda share: abs(share - 1), default=1.0)
        recounted = abs(furthest - 1) <= CLOSE
        return "recounted" if recounted else f"not confirmed: {furthest:.2f} times the count of a plan"

    @property
    def problems(self) -> list[str]:
        """The costs that no trial with these settings can have."""
        return [self.wrong] * bool(self.wrong) + [
            f"it spent {share:.3g} times the {name} that its settings take"
            for name, share in self.shares.items()
            if not (1 / MOST if name.startswith("pool") else LEAST) <= share <= MOST / self.part
        ]


def recount(record: Record, planner: Planner) -> Recount:
    """The costs of `record` beside those that `planner` counts."""
    try:
        whole = build_method(record.trial)
        if isinstance(whole, EmbeddingMethod) and (problem := _unspent(record)):
            return Recount(wrong=problem)
        if record.spent.get("epochs", 0) > MOST_EPOCHS:
            return Recount(reason=f"more than {MOST_EPOCHS:,} epochs are not counted again")
        plan = planner.plan(_cut(record))
    except ValidationError:
        return Recount(reason="its settings are those of another version")
    except XMCBenchError as problem:
        return Recount(reason=str(problem))
    method, budget = whole.encoder_training(record.trial.budget)
    if record.trial.track == "zero-shot" and (
        isinstance(method, EmbeddingMethod) and type(method).training_data is EmbeddingMethod.training_data
    ):
        return Recount(wrong="its method trains on annotations, which the zero-shot track does not have")
    if not plan.measured:
        return Recount(reason="its dataset is not here")
    if record.num_parameters < (1 - CLOSE) * plan.parameters:
        return Recount(wrong=f"its model has {record.num_parameters:,} parameters, its settings {plan.parameters:,}")
    planned = {name: plan.ledger.spent(name) for name in (*COSTS, "epochs", "pool_labels")}
    shares = {name: record.spent.get(name, 0) / count for name, count in planned.items() if count}
    if record.spent.get("ended") and plan.ledger.steps:
        # It may have ended after any step: what its steps took is compared.
        done = shares.pop("steps")
        if not 0 < done <= MOST:
            return Recount(wrong=f"it ended early after {done:.3g} times the steps that its budget allows")
        shares = {f"{name} a step": share / done for name, share in shares.items()}
    part = min((limit / record.trial.budget.spending()[name] for name, limit in budget.spending().items()), default=1.0)
    return Recount(shares, part)


def _unspent(record: Record) -> str:
    """Which limit a training left without a reason; empty if it spent one: it stops at nothing else."""
    spent, limits = record.spent, record.trial.budget.spending()
    if not spent.get("steps") or why_ended(spent):
        return ""
    if any(spent.get(name, 0) + excused_step(name, spent) >= limit * (1 - ROUNDING) for name, limit in limits.items()):
        return ""
    name, limit = next(iter(limits.items()))
    return f"it spent {spent.get(name, 0):g} {name} of {limit:g}, and does not say why it ended"


def _cut(record: Record) -> Trial:
    """The trial with a budget of at most `MOST` times what it spent: no more is worth a count."""
    spent, budget = record.spent, record.trial.budget
    limits = budget.limits() | {
        name: min(limit, MOST * spent[name]) for name, limit in budget.spending().items() if spent.get(name)
    }
    limits["epochs"] = min(limits.get("epochs", math.inf), MOST * max(1.0, spent.get("epochs", 0.0)))
    return record.trial.changed(budget=limits)
