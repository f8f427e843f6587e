"""Several methods trained within one budget, whose rankings become one.

Legend: N held-out training queries, L labels.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from xmcbench import (
    Budget,
    DualEncoder,
    Method,
    MethodInfo,
    PassTooLargeError,
    Predictions,
    Run,
    XMCBenchError,
    data,
    evaluation,
)
from xmcbench_plugins.second_stage.stage import SecondStage, follow, resolve, spelt_out

FUSION, ARRAYS = "fusion.json", "fusion.npz"  # in a model's directory, beside a folder for each part
SEEDS = 2**63
PARTS: list[dict[str, Any]] = [{"method": "dexml"}, {"method": "tfidf-nn"}]
SHARE = 0.95  # of the budget for all parts together


class Fuse(Method):
    """Trains its parts one after the other on the same queries, and fits the fusion on others that it sets aside.

    Where asking the parts about those does not fit into the budget, reciprocal ranks take the rule's place.
    """

    name = "fuse"
    info = MethodInfo(
        summary="several methods in one budget, fused by reciprocal ranks, weights or a decision tree",
        citation="Dahiya et al., NGAME, WSDM 2023 (decision tree); Cormack et al., SIGIR 2009 (reciprocal ranks)",
        version=2,  # what the parts compute about the held-out queries is charged: also scores and second stages
    )
    late_imports: ClassVar[tuple[str, ...]] = (*DualEncoder.late_imports, "sklearn.tree")

    counted: ClassVar = {"listed": ("labels",)}

    @classmethod
    def following(cls, given: Mapping[str, Any], data: data.Extent, budget: Budget) -> dict[str, Any]:
        """The settings of each part follow its share of the budget."""
        parts = given.get("parts", PARTS)
        own = budget.times(given.get("share", SHARE) / len(parts))
        return {**given, "parts": [follow(part, data, own) for part in parts]}

    class Config(Method.Config):
        parts: list[dict[str, Any]] = Field(
            PARTS,
            validate_default=True,
            min_length=2,
            description="methods with their settings: `[{method: prime}, {method: tfidf-nn}]`",
        )
        rule: Literal["reciprocal-ranks", "weighted", "tree"] = Field(
            "weighted", description="how scores are fused; weighted and tree are fitted on held-out training queries"
        )
        metric: str = Field("nDCG@5", description="what the weights are chosen by; with `weighted`")
        held_out: int = Field(
            1000, gt=0, description="training queries that the rule is fitted on and no part is trained on"
        )
        listed: int = Field(100, gt=0, description="labels that each part lists for a query")
        share: float = Field(SHARE, gt=0, lt=1, description="share of every limit of the budget for all parts together")

        @field_validator("parts")
        @classmethod
        def _with_defaults(cls, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [spelt_out(part, Method) for part in given]

        @field_validator("metric")
        @classmethod
        def _known(cls, metric: str) -> str:
            evaluation.find_evaluators([metric])
            return metric

        @model_validator(mode="after")
        def _few_enough(self) -> Self:
            if self.rule == "weighted" and len(self.parts) > evaluation.MAX_PARTS:
                raise ValueError(f"rule: weighted takes at most {evaluation.MAX_PARTS} parts, found {len(self.parts)}")
            return self

        def unused(self) -> frozenset[str]:
            idle = {"weighted": set(), "tree": {"metric"}, "reciprocal-ranks": {"metric", "held_out"}}[self.rule]
            return super().unused() | idle

    config: Fuse.Config
    fusion: evaluation.Fusion
    num_labels: int

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.parts: list[Method] = [
            kind(settings) for kind, settings in (resolve(part, Method) for part in config.parts)
        ]

    @classmethod
    def versions(cls, config: Method.Config) -> dict[str, int]:
        """Its own version, and those of each part as "part 1 method" and so on."""
        assert isinstance(config, Fuse.Config)
        own = super().versions(config)
        for number, part in enumerate(config.parts, start=1):
            kind, settings = resolve(part, Method)
            own |= {f"part {number} {what}": version for what, version in kind.versions(settings).items()}
        return own

    @classmethod
    def charge_versions(cls, config: Method.Config, limits: Collection[str]) -> dict[str, int]:
        """What it and each part are charged, as "part 1 charge of LIMIT" and so on."""
        assert isinstance(config, Fuse.Config)
        own = super().charge_versions(config, limits)
        for number, part in enumerate(config.parts, start=1):
            kind, settings = resolve(part, Method)
            charged = kind.charge_versions(settings, limits)
            own |= {f"part {number} {what}": version for what, version in charged.items()}
        return own

    @classmethod
    def needs_annotations(cls, config: Method.Config) -> bool:  # noqa: ARG003
        return True

    @property
    def inner_methods(self) -> list[Method]:
        return self.parts

    @property
    def num_parameters(self) -> int:
        return sum(part.num_parameters for part in self.parts)

    @property
    def saved_texts(self) -> str:
        return "; ".join(filter(None, dict.fromkeys(part.saved_texts for part in self.parts)))

    def skip(self, card: data.DatasetCard) -> str | None:
        return next((f"{part.name}: {reason}" for part in self.parts if (reason := part.skip(card))), None)

    def notes(self) -> list[str]:
        return [note for part in self.parts for note in part.notes()]

    def check_machine(self) -> None:
        for part in self.parts:
            part.check_machine()

    def foreseen(self, data: data.Extent, budget: Budget) -> dict[str, float]:
        """What the first part with an encoder will spend."""
        return self._first.foreseen(data, budget.times(self._share))

    def encoder_training(self, budget: Budget) -> tuple[Method, Budget]:
        return self._first.encoder_training(budget.times(self._share))

    @property
    def _first(self) -> Method:
        """The first part with an encoder, else the first one."""
        return next((part for part in self.parts if _encoder(part)), self.parts[0])

    @property
    def _share(self) -> float:
        """The share of the budget for one part."""
        return self.config.share / len(self.parts)

    def fit(self, train: data.TrainingData, run: Run) -> None:
        total, rule = len(train.texts), self.config.rule
        rows = np.empty(0, np.int64)
        if rule != "reciprocal-ranks":
            if self.config.held_out >= total:
                raise XMCBenchError(
                    f"fuse: held_out is {self.config.held_out}, expected fewer than the {total} training queries of "
                    f"{train.card.name}"
                )
            rows = np.sort(run.rng("fuse", "held out").permutation(total)[: self.config.held_out])
        others = np.setdiff1d(np.arange(total), rows)
        for number, part in enumerate(self.parts):
            begun, seed = self._share * number, int(run.rng("fuse", "part", number).integers(SEEDS))
            with run.part(f"part-{number}", run.budget.times(self._share), begun, begun + self._share) as own:
                part.fit(train.most_rows(others) if len(rows) else train, replace(own, seed=seed))
        self.num_labels = train.num_labels
        self.fusion = self._fit_rule(train, rows, run)

    def _fit_rule(self, train: data.TrainingData, rows: np.ndarray, run: Run) -> evaluation.Fusion:
        card, held_out = train.card, train.rows(rows)
        try:
            answers = [self._ask(part, held_out, run) for part in self.parts] if len(rows) else []
        except PassTooLargeError:
            answers = []
        with run.ledger.between_checks(run.budget), run.ledger.stage("train"):
            weights_L = evaluation.inverse_propensity(train.targets, card.propensity_a, card.propensity_b)
            return evaluation.fit_fusion(
                self.config.rule if answers else "reciprocal-ranks",
                answers,
                held_out.targets,
                weights_L,
                self.config.metric,
            )

    def _ask(self, part: Method, held_out: data.TrainingData, run: Run) -> Predictions:
        """What a part lists for the held-out queries, charged."""
        found = part.predict_charged(held_out.texts, min(self.config.listed, held_out.num_labels), run)
        return evaluation.drop_ignored(found, held_out.ignore, found.k)

    def predict(self, texts: data.Texts, k: int) -> Predictions:
        listed = self._listed(k)
        return self.fusion.fuse([part.predict(texts, listed) for part in self.parts], k)

    def predict_charged(self, texts: data.Texts, k: int, run: Run) -> Predictions:
        listed = self._listed(k)
        return self.fusion.fuse([part.predict_charged(texts, listed, run) for part in self.parts], k)

    def predict_exactly(self, texts: data.Texts, k: int) -> Predictions | None:
        listed = self._listed(k)
        found = [part.predict_exactly(texts, listed) for part in self.parts]
        if not any(found):
            return None
        exact = [own or part.predict(texts, listed) for own, part in zip(found, self.parts, strict=True)]
        return self.fusion.fuse(exact, k)

    def _listed(self, k: int) -> int:
        return max(k, min(self.config.listed, self.num_labels))

    def save(self, directory: Path) -> None:
        for number, part in enumerate(self.parts):
            (directory / f"part-{number}").mkdir()
            part.save(directory / f"part-{number}")
        (directory / FUSION).write_text(json.dumps({"rule": self.fusion.name, "labels": self.num_labels}))
        np.savez(directory / ARRAYS, **self.fusion.arrays())  # type: ignore[arg-type]

    def load(self, directory: Path) -> None:
        for number, part in enumerate(self.parts):
            part.load(directory / f"part-{number}")
        facts = json.loads((directory / FUSION).read_text())
        self.num_labels = facts["labels"]
        with np.load(directory / ARRAYS, allow_pickle=False) as arrays:
            self.fusion = evaluation.restore_fusion(facts["rule"], dict(arrays))


def _encoder(part: Method) -> DualEncoder | None:
    """The dual encoder that reads the queries of a part."""
    if isinstance(part, SecondStage):
        return part.first
    return part if isinstance(part, DualEncoder) else None
