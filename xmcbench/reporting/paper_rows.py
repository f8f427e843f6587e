"""What others say of results: the rows that papers print, with all that the papers state, and claims about them.

Plugins hand both in (`xmcbench/reporting/published.py`). The documentation prints the descriptions of the facts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from xmcbench.trial.record_fields import Frozen

COSTS = ("training_hours", "inference_hours", "memory_gb", "batch_seconds", "epoch_hours")


def _as_number(value: Any) -> Any:
    """Decimal numbers come from the reader as they are written: metrics keep their zeros, costs need none."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+\.\d*", value) else value


def _like(pattern: str, example: str) -> AfterValidator:
    """A validator: the whole text matches `pattern`; `example` explains the pattern in the error."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected something like {example}")
        return text

    return AfterValidator(check)


Cost = Annotated[float, Field(gt=0), BeforeValidator(_as_number)]
Devices = Annotated[str, _like(r"\d+ x [^+]+( \+ \d+ x [^+]+)*", "'4 x A100' or '1 x A100 + 2 x V100'")]
Metric = Annotated[str, _like(r"[A-Za-z]+(@[1-9]\d*|-[1-9L])?", "'P@1' or 'ROUGE-L'")]
Key = Annotated[str, _like(r"[a-z0-9][a-z0-9.-]*", "'dexml' or 'lee-2027'")]
Misprint = Annotated[str, Field(min_length=1)]


KINDS = {"encoder": "encoder", "classifier": "classifier", "encoder + classifier": "both"}  # that a variant may name


class RowFacts(Frozen):
    """The facts of a row beside its metrics. None and the empty string mean that the paper does not say."""

    model_config = ConfigDict(str_strip_whitespace=True)

    dataset: str = Field("", min_length=1, description="name of the dataset, one for each split; required")
    track: Literal["supervised", "zero-shot"] = Field("supervised", description="zero-shot: trained on no true pair")
    protocol: str = Field("", description="how evaluation differs from others; such rows are compared among themselves")
    method: str = Field("", min_length=1, description="the method's name, the same in every paper; required")
    variant: str = Field("", description="what distinguishes the row from the method's other rows in its table")
    as_printed: str = Field("", description="the paper's name of the row, where it differs")
    kind: Literal["encoder", "classifier", "both", ""] = Field(
        "", description="what predicts; if absent, from a `variant` encoder, classifier or encoder + classifier"
    )
    role: Literal["main", "ablation", "cost"] = Field("main", description="ablations and costs fold into the main row")
    quoted_from: Key | Literal[""] = Field(
        "", description="the paper that measured the result; original: the method's own paper or repository"
    )
    misprint: dict[Metric, Misprint] = Field(
        {}, description="metric: what is wrong with its value, which is not ranked"
    )
    split: str = Field("", description="how the test split differs; such rows are shown unranked")
    label_text: bool | None = Field(None, description="whether label texts are read")
    classifier: bool | None = Field(None, description="whether prediction uses a weight vector for each label")
    ensemble: int | None = Field(None, ge=1, description="learners whose predictions are combined")
    extra_metadata: bool | None = Field(None, description="whether data beside texts and targets is used")
    encoder: str | None = Field(None, description="the pretrained encoder")
    dimension: int | None = Field(None, ge=1, description="dimension of the embeddings that are searched")
    loss: str | None = Field(None, description="the loss that is minimised")
    batch_size: int | None = Field(None, ge=1, description="queries per step")
    negatives: str | None = Field(None, description="as `in-batch`, `in-batch + 5 hard per query`, `all labels`")
    negative_pool: int | None = Field(None, ge=0, description="labels that a query is scored against in a step")
    epochs: int | None = Field(None, ge=0, description="passes over the training queries")
    hardware: Devices | None = Field(None, description="`4 x A100`; kinds are joined by ` + `")
    training_hours: Cost | None = Field(None, description="wall clock of training")
    inference_hours: Cost | None = Field(None, description="wall clock of predicting the test split")
    memory_gb: Cost | None = Field(None, description="peak memory of the largest device")
    batch_seconds: Cost | None = Field(None, description="wall clock of one step")
    epoch_hours: Cost | None = Field(None, description="wall clock of one epoch")
    settings: dict[str, str | int | bool] = Field({}, description="anything else, as `{beta: 3}`; they add up")
    note: str = Field("", description="remarks on the row")

    @property
    def predictor(self) -> str:
        """What predicts: "encoder", "classifier" or "both"; empty where the paper does not say."""
        return self.kind or KINDS.get(self.variant) or ("encoder" if self.classifier is False else "")


class PublishedRow(RowFacts):
    """One result that a paper prints, with all that the paper states about it."""

    paper: str
    table: str  # "Table 3"
    citation: str
    url: str = ""
    bibtex: str = ""
    introduced: bool = False  # the paper introduces the method
    metrics: dict[str, float]  # fractions, as in a record; empty where only costs are printed
    intervals: dict[str, float] = Field({})  # half widths of 95 % confidence intervals, fractions
    printed: dict[str, str]  # the metrics in the paper's own digits
    printed_costs: dict[str, str] = Field({})  # the costs, likewise
    place: str = ""  # file and line

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """No two rows share it."""
        return self.paper, self.table, self.dataset, self.method, self.variant

    @property
    def source(self) -> str:
        """Paper and table: ``dexml Table 3``."""
        return f"{self.paper} {self.table}"

    @property
    def label(self) -> str:
        """The name to show: method and variant."""
        return f"{self.method} ({self.variant})" if self.variant else self.method


class Claim(Protocol):
    """What a paper claims of rows, and what was seen of it here. As text it is a sentence with every finding."""

    @property
    def id(self) -> str:
        """A short name."""

    @property
    def claim(self) -> str:
        """The claim in words."""

    @property
    def regimes(self) -> Sequence[object]:
        """Each attempt at the claim, as text what was seen and at what scale."""

    def is_about(self, row: PublishedRow) -> bool:
        """Whether the row is the one that the paper claims to be better."""
