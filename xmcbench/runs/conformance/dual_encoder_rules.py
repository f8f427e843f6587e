"""The rules of methods that train on several workers or in micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xmcbench.runs.conformance.method_rules import MethodSubject, require_same
from xmcbench.runs.conformance.rules import NotApplicableError, RuleSet
from xmcbench.runs.conformance.tiny_trial import NUM_LABELS, TinyTrial

RULES: RuleSet[MethodSubject] = RuleSet("A method that is a dual encoder")
MICRO_BATCH_TOKENS = 96  # a few texts of the tiny datasets


def _without_dropout(subject: MethodSubject, **settings: Any) -> TinyTrial:
    """The trial with further settings and an encoder without dropout, whose draws depend on micro-batches."""
    encoder: Any = subject.trial.settings.get("encoder", "tiny")
    named: Mapping[str, Any] = encoder if isinstance(encoder, Mapping) else {"name": encoder}
    still = {**named, "dropout": 0.0, "hidden_dropout": 0.0}
    return replace(subject.trial, settings={**subject.trial.settings, "encoder": still, **settings})


def _has_encoder(subject: MethodSubject) -> None:
    if "micro_batch_tokens" not in subject.registered.thing.Config.model_fields:
        raise NotApplicableError("not a DualEncoder")


@RULES.rule(
    "The size of micro-batches changes results only by rounding.",
    "make `loss` a function of the batch's embeddings alone, with the gradients of the whole batch",
)
def micro_batches_change_nothing(subject: MethodSubject) -> None:
    _has_encoder(subject)
    whole = subject.fit(replace(_without_dropout(subject), name="whole"))
    parts = subject.fit(replace(_without_dropout(subject, micro_batch_tokens=MICRO_BATCH_TOKENS), name="parts"))
    require_same(whole.predict(), parts.predict(), "one batch", "micro-batches")


@RULES.rule(
    "Two workers train what one worker trains, up to rounding.",
    "see each of `self.shard.label_ids` as this worker's labels only, or set many_workers = False",
)
def two_workers_change_nothing(subject: MethodSubject) -> None:
    if not subject.registered.thing.many_workers:
        raise NotApplicableError("many_workers is False")
    _has_encoder(subject)
    alone = subject.fit(replace(_without_dropout(subject), name="alone"))
    trial = replace(_without_dropout(subject), name="two workers")
    require_same(alone.predict(NUM_LABELS), trial.run(workers=2), "one worker", "two workers")
