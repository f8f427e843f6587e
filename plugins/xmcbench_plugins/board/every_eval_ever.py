"""Trials in the common schema of evaluations, Every Eval Ever 0.3.0 (https://github.com/evaleval/every_eval_ever).

A trial is `data/DATASET/xmcbench/METHOD/UUID.json`. Where its predictions and its dataset are at hand, a line for each
test query lies beside it in `UUID_samples.jsonl`, scored by P@1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from xmcbench.data import Dataset
from xmcbench.evaluation.bootstrap import RESAMPLES
from xmcbench.evaluation.evaluator import dataset_hits
from xmcbench.files.atomic import atomic_write
from xmcbench.reporting.archive import Archive
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record

SCHEMA = "0.3.0"
SHOWN = 10  # labels of a query's answer
BY_QUERY = "P@1"  # the metric of the lines: whether the best label is true


def write_evaluations(
    archive: Archive,
    shown: Container[str],
    data: Path,
    folder: Path,
    on_problem: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write the scored trials whose keys are `shown`; the files. Problems with predictions go to `on_problem`."""
    logs = {key: _log(record) for key, record in archive.records.items() if key in shown and record.metrics}
    places = {key: folder / _place(archive.records[key]) for key in logs}
    written = list(places.values())
    predicted = {key for key in logs if BY_QUERY in archive.records[key].metrics}
    for record, dataset, predictions in archive.predicted(predicted, data, on_problem):
        log, path, digest = logs[record.key], places[record.key], sha256()
        written.append(path.with_name(f"{path.stem}_samples.jsonl"))
        with atomic_write(written[-1]) as file:
            for line in _samples(log, dataset, predictions):
                content = json.dumps(line, ensure_ascii=False).encode() + b"\n"
                digest.update(content)
                file.write(content)
        log["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": written[-1].relative_to(folder).as_posix(),
            "hash_algorithm": "sha256",
            "checksum": digest.hexdigest(),
            "total_rows": len(predictions),
        }
    for key, log in logs.items():
        with atomic_write(places[key]) as file:
            file.write(json.dumps(log, indent=1, ensure_ascii=False).encode() + b"\n")
    return written


def _place(record: Record) -> Path:
    """The schema's place of a trial's file, whose name follows from the record."""
    names = (record.trial.dataset, "xmcbench", record.trial.label)
    parts = [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "unnamed" for name in names]
    name = UUID(bytes=sha256(record.key.encode()).digest()[:16], version=4)  # the schema allows no other version
    return Path("data", *parts, f"{name}.json")


def _log(record: Record) -> dict[str, Any]:
    """A trial without its queries."""
    trial = record.trial
    ended = datetime.fromisoformat(record.ended or "1970-01-01T00:00:00+00:00").astimezone(UTC)
    facts: dict[str, Any] = {"seed": trial.seed, "track": trial.track, "trial": record.key, "suite": record.suite}
    facts |= {} if record.parameters is None else {"num_parameters": record.parameters}
    facts |= trial.config
    costs = {f"budget_{name}": limit for name, limit in trial.budget.limits().items()}
    costs |= {f"spent_{name}": amount for name, amount in record.counted.items()}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{trial.dataset}/xmcbench/{trial.label}/{record.key}",
        "evaluation_timestamp": ended.isoformat(),
        "retrieved_timestamp": str(int(ended.timestamp())),
        "source_metadata": {
            "source_name": "xmcbench",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "xmcbench", "version": trial.version},
        "model_info": {
            "name": trial.label,
            "id": f"xmcbench/{trial.method}",
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                **_texts(facts),
            },
        },
        "evaluation_results": [_result(record, metric, costs) for metric in record.metrics],
    }


def _result(record: Record, metric: str, costs: dict[str, Any]) -> dict[str, Any]:
    trial = record.trial
    details: dict[str, Any] = {"score": record.metrics[metric]}
    if interval := record.intervals.get(metric):
        limits = {"lower": interval[0], "upper": interval[1], "confidence_level": 0.95, "method": "bootstrap"}
        details["uncertainty"] = {"confidence_interval": limits, "num_bootstrap_samples": RESAMPLES}
    name, _, k = metric.partition("@")
    return {
        "evaluation_result_id": metric,
        "evaluation_name": trial.dataset,
        "source_data": {
            "dataset_name": trial.dataset,
            "source_type": "other",
            "additional_details": {"content_hash": trial.dataset_hash, "truth_hash": record.truth_hash},
        },
        "metric_config": {
            "metric_id": metric,
            "metric_name": metric,
            "metric_kind": name,
            "metric_unit": "proportion",
            "metric_parameters": {"k": int(k)} if k.isdigit() else {},
            "lower_is_better": record.is_lower(metric),
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
            "additional_details": {"metric_version": str(record.metric_version)},
        },
        "score_details": details,
        "generation_config": {"additional_details": _texts(costs)},
    }


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """The schema wants texts: others as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _samples(log: dict[str, Any], dataset: Dataset, predictions: Predictions) -> Iterator[dict[str, Any]]:
    """What the file has of each test query."""
    hits, labels = dataset_hits(predictions, dataset), dataset.label_texts
    correct_N = np.zeros(len(predictions), dtype=bool)
    correct_N[hits.queries[hits.ranks == 0]] = True
    truth = hits.truth
    for query, (text, correct) in enumerate(zip(dataset.test.texts, correct_N.tolist(), strict=True)):
        reference = [labels[label] for label in truth.indices[truth.indptr[query] : truth.indptr[query + 1]].tolist()]
        answer = [labels[label] for label in predictions.indices[query, :SHOWN].tolist() if label >= 0]
        yield {
            "schema_version": SCHEMA,
            "evaluation_id": log["evaluation_id"],
            "model_id": log["model_info"]["id"],
            "evaluation_name": dataset.card.name,
            "evaluation_result_id": BY_QUERY,
            "sample_id": str(query),
            "sample_hash": sha256("".join([text, *reference]).encode()).hexdigest(),
            "interaction_type": "single_turn",
            "input": {"raw": text, "reference": reference},
            "output": {"raw": answer},
            "messages": None,
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": answer[0] if answer else "",
                    "extraction_method": "first of the ranking",
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": float(correct), "is_correct": correct},
        }
