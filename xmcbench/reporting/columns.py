"""The columns a leaderboard can have beside its figures, and how a cell is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xmcbench.reporting.rows import Fact, Row

Kind = Literal["text", "number", "count", "bytes", "seconds", "hours", "flag"]


@dataclass(frozen=True)
class Column:
    """A fact about a row: its name on the command line, its heading, and how it is written."""

    name: str
    heading: str
    kind: Kind
    help: str


COLUMNS = {
    column.name: column
    for column in (
        Column("batch_size", "batch", "number", "queries a step"),
        Column("negatives", "negatives", "text", "where negatives come from"),
        Column("negative_pool", "pool", "number", "labels a query is scored against in a step"),
        Column("encoder", "encoder", "text", "the pretrained encoder"),
        Column("dimension", "dim", "number", "of the embeddings that are searched"),
        Column("loss", "loss", "text", "what is minimised"),
        Column("label_text", "label text", "flag", "whether label texts are read"),
        Column("classifier", "classifier", "flag", "whether prediction uses a weight vector for each label"),
        Column("ensemble", "learners", "number", "learners whose predictions are joined"),
        Column("extra_metadata", "metadata", "flag", "whether more than texts and targets is used"),
        Column("epochs", "epochs", "number", "passes over the training queries"),
        Column("steps", "steps", "count", "optimiser steps"),
        Column("encoder_tokens", "tokens", "count", "real tokens encoded, mining included"),
        Column("flops", "flops", "count", "floating-point operations of encoder and scores"),
        Column("teacher", "teacher", "text", "what judged documents and labels in place of annotations"),
        Column("simulated_teacher", "simulated", "flag", "whether its answers came from annotations: not ranked"),
        Column("teacher_calls", "teacher calls", "count", "answers asked of a teacher"),
        Column("teacher_tokens", "teacher tokens", "count", "tokens a teacher read and wrote"),
        Column("device_seconds", "seconds", "seconds", "wall clock of what the budget covers"),
        Column("train_seconds", "training s", "seconds", "wall clock of training alone"),
        Column("training_hours", "hours", "hours", "wall clock of training"),
        Column("inference_hours", "inference h", "hours", "wall clock, for the test split"),
        Column("epoch_hours", "epoch h", "hours", "wall clock of a pass"),
        Column("batch_seconds", "step s", "seconds", "wall clock of a step"),
        Column("peak_bytes", "memory", "bytes", "peak memory of the worker that took the most"),
        Column("memory_gb", "GB", "number", "largest memory of a device"),
        Column("num_parameters", "params", "count", "trainable, of the model that predicts"),
        Column("hardware", "hardware", "text", "devices"),
        Column("workers", "workers", "number", "processes that trained together"),
        Column("num_seeds", "seeds", "number", "trials that the figures are means over"),
        Column("suite", "suite", "text", "the suite that ran it"),
        Column("selection_split", "selection", "text", "what chose among checkpoints"),
        Column("settings", "settings", "text", "what else a paper says"),
        Column("note", "note", "text", "what a reader of the row has to know"),
        Column("paper", "source", "text", "paper and table"),
        Column("trial", "trial", "text", "key of the first of its trials"),
    )
}


def cell(row: Row, name: str) -> str:
    """What is shown of a row in the column of a metric or a fact; empty where it has nothing."""
    if name in row.metrics:
        return row.printed.get(name) or f"{100 * row.metrics[name]:.2f}"
    fact = row.facts.get(name)
    return "" if fact is None else written(fact, COLUMNS[name].kind)


def printable(text: str) -> str:
    """The text with what a terminal would obey, and breaks of lines, spelt out.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def heading(name: str) -> str:
    """What stands above the column of a metric or a fact."""
    return COLUMNS[name].heading if name in COLUMNS else name


def written(fact: Fact, kind: Kind) -> str:
    """
    >>> written(20_400_000, "count"), written(8192, "number"), written(1_234_000_000, "bytes"), written(True, "flag")
    ('20.4M', '8,192', '1.2GB', 'yes')
    """
    if isinstance(fact, str):
        return printable(" ".join(fact.split()))
    if kind == "flag":
        return "yes" if fact else "no"
    if kind == "seconds":
        return f"{fact:.1f}" if fact < 100 else f"{fact:.0f}"
    if kind == "hours":
        return f"{fact:.1f}" if fact >= 0.1 else f"{fact:.2g}"
    if kind in ("count", "bytes"):
        return _short(float(fact)) + ("B" if kind == "bytes" else "")
    return f"{fact:,.10g}"


def _short(value: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
