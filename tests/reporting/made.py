"""Records as trials leave them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import METRIC_VERSION, Failure, Record, Status
from xmcbench.trial.trial import Trial

LEDGER = {
    "encoder_tokens": 20_000_000,
    "steps": 1000,
    "stage_seconds": {"train": 80.0, "mine": 10.0, "predict": 3.0},
    "device_seconds": 90.0,
    "peak_bytes": 1_300_000_000,
}


def record(label: str = "dexml", p1: float = 0.5, **changes: Any) -> Record:
    """A record of a finished trial; `changes` go to the trial or the record, whichever has the field."""
    fields: dict[str, Any] = {
        "label": label,
        "method": "dexml",
        "distribution": "xmcbench",
        "version": "0.1.0",
        "config": {},
        "dataset": "made",
        "dataset_hash": "0123456789abcdef",
        "seed": 0,
        "budget": Budget(steps=1000),
    }
    trial = Trial(**fields | {name: value for name, value in changes.items() if name in Trial.model_fields})
    outcome: dict[str, Any] = {
        "key": sha256(f"{label} {trial.key}".encode()).hexdigest()[:16],  # those of one key are one trial
        "suite": "tests",
        "trial": trial,
        "status": Status.OK,
        "metrics": {"P@1": p1, "nDCG@5": p1 / 2},
        "metric_version": METRIC_VERSION,
        "spent": LEDGER,
        "num_parameters": 4_200_000,
    }
    return Record(**outcome | {name: value for name, value in changes.items() if name in Record.model_fields})


def failed(label: str, status: Status, **changes: Any) -> Record:
    failure = Failure(type="MemoryError", message="out of\nmemory", stage="fit")
    return record(label, status=status, metrics={}, metric_version=0, spent={}, failure=failure, **changes)


def cited(method: str = "DEXML", p1: float = 0.5, **facts: Any) -> PublishedRow:
    """A published row; `facts` are any of its fields."""
    fields: dict[str, Any] = {
        "dataset": "made",
        "method": method,
        "paper": "dexml",
        "table": "Table 1",
        "citation": "",
        "url": "",
        "metrics": {"P@1": p1, "P@5": p1 / 2},
        "intervals": {},
        "printed": {"P@1": f"{100 * p1:.1f}", "P@5": f"{50 * p1:.2f}"},
        "place": "dexml.yaml:1",
    }
    if "metrics" in facts and "printed" not in facts:
        fields["printed"] = {name: f"{100 * value:.1f}" for name, value in facts["metrics"].items()}
    return PublishedRow(**fields | facts)
