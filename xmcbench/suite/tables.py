"""The tables that a suite can ask for, and the columns that they and leaderboards can show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from xmcbench.trial.record_fields import Frozen

Kind = Literal["text", "number", "count", "bytes", "seconds", "hours", "share", "flag"]
RANKS = "P@5"  # the metric by which tables, figures and the page rank, unless another is asked for


def ranking_metric(metrics: Iterable[str]) -> str:
    """The metric of `metrics` that ranks: `RANKS`, or the first one where `RANKS` is not among them; "" of none.

    >>> ranking_metric(["P@1", "P@5"]), ranking_metric(["R@10", "P@1"])
    ('P@5', 'R@10')
    """
    names = list(metrics)
    return RANKS if RANKS in names else next(iter(names), "")


@dataclass(frozen=True)
class Column:
    """A column of facts: its name on the command line, its heading, and how values are formatted."""

    name: str
    heading: str
    kind: Kind
    help: str


COLUMNS = {
    column.name: column
    for column in (
        Column("kind", "kind", "text", "what predicts: the encoder, the classifier, or both"),
        Column("batch_size", "batch", "number", "queries per step"),
        Column("negatives", "negatives", "text", "where negatives come from"),
        Column("negative_pool", "pool", "number", "labels that a query is scored against in a step"),
        Column("positives", "positives", "number", "positives of a query in a step's pool, mean"),
        Column("overrun", "overrun", "share", "how far the budget was exceeded, of the limit that was exceeded most"),
        Column("unspent", "unspent", "share", "share of the budget that was left where training ended early"),
        Column("encoder", "encoder", "text", "the pretrained encoder"),
        Column("dimension", "dim", "number", "dimension of the embeddings that are searched"),
        Column("loss", "loss", "text", "the loss that is minimised"),
        Column("label_text", "label text", "flag", "whether label texts are read"),
        Column("classifier", "classifier", "flag", "whether prediction uses a weight vector for each label"),
        Column("ensemble", "learners", "number", "learners whose predictions are joined"),
        Column("extra_metadata", "metadata", "flag", "whether data beside texts and targets is used"),
        Column("epochs", "epochs", "number", "passes over the training queries"),
        Column("steps", "steps", "count", "optimiser steps"),
        Column("encoder_tokens", "tokens", "count", "real tokens encoded, mining included"),
        Column("flops", "flops", "count", "floating-point operations of encoder and scores"),
        Column("teacher", "teacher", "text", "the model that judged document-label pairs in place of annotations"),
        Column(
            "simulated_teacher", "simulated", "flag", "whether the teacher's answers came from annotations: not ranked"
        ),
        Column("teacher_calls", "teacher calls", "count", "questions sent to a teacher"),
        Column("teacher_tokens", "teacher tokens", "count", "tokens a teacher read and wrote"),
        Column("teacher_unparsed", "no answer", "share", "share of a teacher's replies that hold no answer"),
        Column("device_seconds", "seconds", "seconds", "device seconds of all stages that the budget covers"),
        Column("clock", "clock", "text", "of device seconds: processor, or wall on a GPU and in older records"),
        Column("train_seconds", "training s", "seconds", "wall clock of training alone"),
        Column("query_ms", "ms/query", "number", "wall clock of predicting, in milliseconds per test query"),
        Column("predict_bytes", "predict memory", "bytes", "peak memory while predicting"),
        Column("model_bytes", "model", "bytes", "size of the saved model, index included"),
        Column("training_hours", "hours", "hours", "wall clock of training"),
        Column("inference_hours", "inference h", "hours", "wall clock of predicting the test split"),
        Column("epoch_hours", "epoch h", "hours", "wall clock of one epoch"),
        Column("batch_seconds", "step s", "seconds", "wall clock of one step"),
        Column("peak_bytes", "memory", "bytes", "peak memory of the largest worker"),
        Column("memory_gb", "GB", "number", "peak memory of the largest device, in GB"),
        Column("num_parameters", "params", "count", "trainable parameters of the model that predicts"),
        Column("hardware", "hardware", "text", "devices"),
        Column("workers", "workers", "number", "processes that trained together"),
        Column("side_by_side", "side by side", "number", "trials that shared the cores: no seconds are shown"),
        Column("num_seeds", "seeds", "number", "trials that the metrics are averaged over"),
        Column("shared_texts", "leaked", "number", "test texts that are also in the training part"),
        Column("shared_label_texts", "alike", "number", "labels whose text another label has too"),
        Column("suite", "suite", "text", "the suite that ran the trial"),
        Column("selection_split", "selection", "text", "how the checkpoint was chosen"),
        Column("settings", "settings", "text", "other settings that a paper states"),
        Column("note", "note", "text", "remarks on the row"),
        Column("role", "role", "text", "role of the row in its paper: main, ablation, cost"),
        Column("split", "split", "text", "how the test split differs: such rows are not ranked"),
        Column("quoted_from", "quoted from", "text", "the paper that measured the result"),
        Column("misprints", "misprints", "text", "metrics that the paper misprints"),
        Column("paper", "source", "text", "paper and table"),
        Column("variants", "variants", "text", "number of further results of the method, which `--all` shows"),
        Column("trial", "trial", "text", "key of the trial (of the first seed)"),
    )
}


UNITS = ("encoder_tokens", "device_seconds", "flops", "steps")  # that a curve knows
_TARGET = re.compile(rf"to (?P<metric>\S+@\d+)=(?P<value>\d+(?:\.\d+)?)(?: in (?P<unit>{'|'.join(UNITS)}))?")


@dataclass(frozen=True)
class Target:
    """A metric to reach on held-out queries, as a fraction, and the unit in which what was spent is counted."""

    metric: str
    value: float
    unit: str = "encoder_tokens"

    @classmethod
    def parse(cls, text: str) -> Target | None:
        """The target that a column names; None where the text is none.

        >>> Target.parse("to P@1=50"), Target.parse("P@1")
        (Target(metric='P@1', value=0.5, unit='encoder_tokens'), None)
        >>> Target.parse("to nDCG@5=37.5 in device_seconds")
        Target(metric='nDCG@5', value=0.375, unit='device_seconds')
        """
        match = _TARGET.fullmatch(text)
        return cls(match["metric"], float(match["value"]) / 100, match["unit"] or UNITS[0]) if match else None


class TableShape(Frozen):
    """The key `tables.TITLE` of a suite: which cells make a table, and in which columns."""

    methods: list[str] | None = Field(None, min_length=1, description="labels of the suite's methods; null: all")
    columns: list[str] = Field(
        min_length=1, description="metrics, settings, leaderboard columns, or targets as `to P@1=50`"
    )
    beside: str = Field("", description="a paper's table whose rows are shown below, as in `dexml Table 3`")
