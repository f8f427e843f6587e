"""Counts the costs of a finished trial again, from its settings and its data alone, as a plan does.

A plan is right to a few per cent, except where negatives depend on the embeddings as training moves them: queries that
share mined negatives have smaller pools, so that a budget of operations lasts for more steps. Steps, tokens
and operations that it confirms are recounted; all others are what the submitter states, as seconds and memory are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import ValidationError

from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.planning.trials import Planner
from xmcbench.errors import XMCBenchError
from xmcbench.trial.method import build_method
from xmcbench.trial.record import Record

CLOSE = 0.1  # share of a plan that a recounted cost may differ by
LEAST = 0.5  # of a plan: less is no trial with these settings; more is, where queries of a batch share mined negatives


@dataclass(frozen=True)
class Recount:
    """The stated costs of a trial as shares of those that a plan counts; or why there is no plan."""

    shares: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    wrong: str = ""  # why no trial with these settings can have run

    def __str__(self) -> str:
        if self.reason:
            return f"stated: {self.reason}"
        furthest = max(self.shares.values(), key=lambda share: abs(share - 1), default=1.0)
        recounted = abs(furthest - 1) <= CLOSE
        return "recounted" if recounted else f"stated: {furthest:.2f} times what a plan counts"

    @property
    def problems(self) -> list[str]:
        """The costs that no trial with these settings can have."""
        return [self.wrong] * bool(self.wrong) + [
            f"it spent {share:.3g} times the {name} that its settings take"
            for name, share in self.shares.items()
            if not share >= LEAST
        ]


def recount(record: Record, planner: Planner) -> Recount:
    """The costs of `record` beside those that `planner` counts."""
    try:
        plan = planner.plan(record.trial)
    except ValidationError:
        return Recount(reason="its settings are those of another version")
    except XMCBenchError as problem:
        return Recount(reason=str(problem))
    method, _ = build_method(record.trial).encoder_training(record.trial.budget)
    if record.trial.track == "zero-shot" and (
        isinstance(method, EmbeddingMethod) and type(method).training_data is EmbeddingMethod.training_data
    ):
        return Recount(wrong="its method trains on annotations, which the zero-shot track does not have")
    if not plan.measured:
        return Recount(reason="its dataset is not here")
    if record.num_parameters < LEAST * plan.parameters:
        return Recount(wrong=f"its model has {record.num_parameters:,} parameters, its settings {plan.parameters:,}")
    planned = {"steps": plan.steps, "encoder_tokens": plan.encoder_tokens, "flops": plan.flops}
    shares = {name: record.spent.get(name, 0) / count for name, count in planned.items() if count}
    if record.spent.get("ended") and plan.steps:
        # It may have ended after any step: what its steps took is compared.
        done = shares.pop("steps")
        if not 0 < done <= 1 + CLOSE:
            return Recount(wrong=f"it ended early after {done:.3g} times the steps that its budget allows")
        shares = {f"{name} a step": share / done for name, share in shares.items()}
    return Recount(shares)
