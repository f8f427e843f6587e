"""Convergence corridors: what a short training of each built-in method ends with, and how far that may vary.

As MLPerf's reference convergence points: a method with fixed settings is trained for seconds on made data, with a small
encoder on the CPU. `corridors.yaml` holds the mean and the standard deviation over `SEEDS` seeds of the training loss
(its mean over the last quarter of the steps), of P@1 and of R@100, with the versions of the code they belong to. One
seed trained anew has to lie within `WIDTH` standard deviations of the mean. Machines differ by rounding, which moves a
training by less than another seed does; a mistake in the code moves it by more.

    pytest -m long tests/test_corridors.py             # train one seed of each method
    pytest -m slow tests/test_corridors.py             # train each with a deliberate mistake, which has to show
    python tests/corridors.py                          # measure the corridors of methods whose versions were raised

A method whose versions are the same keeps its corridor: the last one refuses where none was raised.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
import yaml
from corridor_methods import METHODS, Mistake
from toy import save_bert
from transformers.utils.logging import disable_progress_bar

from xmcbench.data import Dataset, load
from xmcbench.data.dataset import TrainingData
from xmcbench.engine.encoders.tokenizer import trained_tokenizer
from xmcbench.evaluation import check_predictions
from xmcbench.evaluation.evaluator import dataset_hits, find_evaluators, score
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget
from xmcbench.trial.predictions import STORED
from xmcbench.trial.run import Judgements, Progress, Run

CORRIDORS = Path(__file__).with_suffix(".yaml")
DATASET = "catalog-500"
METRICS = ("P@1", "R@100")
SEEDS = 5
WIDTH = 4.0  # standard deviations to either side of the mean
SMALLEST = {"loss": 0.003, "P@1": 0.004, "R@100": 0.003}  # half-widths at least; that of the loss is relative
Values = dict[str, float]


class Annotations:
    """A judge that answers from the training annotations, and writes them, for methods that ask a teacher."""

    def __init__(self, train: TrainingData) -> None:
        self.targets_NL, self.label_texts = train.targets, train.label_texts

    def __call__(self, document_ids: np.ndarray, label_ids: np.ndarray) -> Judgements:
        answers = np.asarray(self.targets_NL[document_ids, label_ids]).ravel().astype(np.int8)
        return Judgements(answers, np.ones(len(answers), np.float32))

    def write(self, document_ids: np.ndarray, prompt: str, tokens: int) -> list[str | None]:  # noqa: ARG002
        labels = (self.targets_NL[[document]].indices for document in document_ids.tolist())
        return ["\n".join(self.label_texts[int(label)] for label in own) for own in labels]

    def close(self) -> None: ...

    def __enter__(self) -> Annotations:
        return self

    def __exit__(self, *_: object) -> None: ...


def train(name: str, seed: int, cache_dir: Path, mistake: Mistake | None = None) -> Values:
    """The values that a training of a method ends with."""
    kind, dataset = registry().method(name).thing, data(cache_dir)
    plan = METHODS[name]
    settings = with_encoder({**plan.settings, **(mistake.settings if mistake else {})}, small_encoder(cache_dir))
    method = kind(kind.Config.model_validate(settings))
    split, losses = dataset.training_data(), []

    def note(progress: Progress) -> None:
        losses.extend(progress.metrics[key] for key in ("loss",) if key in progress.metrics)

    with tempfile.TemporaryDirectory() as directory:
        run = Run(
            seed=seed,
            budget=Budget.model_validate(plan.budget),
            checkpoint=Path(directory),
            cache=cache_dir,
            report=note,
            judge=lambda _: Annotations(split),
        )
        method.fit(split.unannotated(name) if plan.unannotated else split, run)
    if mistake and mistake.after_fit:
        mistake.after_fit(method)
    predictions = method.predict(dataset.test.texts, min(STORED, dataset.card.num_labels))
    check_predictions(predictions, *dataset.test.targets.shape, dataset.ignore_test)
    metrics = score(dataset_hits(predictions, dataset), METRICS, find_evaluators(METRICS))
    return ({"loss": fmean(losses[-max(1, len(losses) // 4) :])} if losses else {}) | metrics


@cache
def data(cache_dir: Path) -> Dataset:
    return load(DATASET, cache_dir / "data", cache_dir)


@cache
def small_encoder(cache_dir: Path) -> str:
    """The folder of a BERT of two layers of 64 units with random weights."""
    disable_progress_bar()
    return save_bert(cache_dir / "corridor-encoder", trained_tokenizer(data(cache_dir).train.texts, cache_dir), 64)


def with_encoder(settings: Any, encoder: str) -> Any:
    """The settings with the encoder's folder in place of the name "small", in mappings and lists too."""
    if isinstance(settings, dict):
        return {key: with_encoder(value, encoder) for key, value in settings.items()}
    if isinstance(settings, list):
        return [with_encoder(value, encoder) for value in settings]
    return encoder if settings == "small" else settings


def versions(name: str) -> dict[str, int]:
    """The versions of the code that a method's corridor belongs to."""
    kind = registry().method(name).thing
    found: dict[str, int] = kind.versions(kind.Config.model_validate(METHODS[name].settings))
    return found


def outside(values: Values, corridor: dict[str, Any]) -> list[str]:
    """The values that are not in the corridor, as text."""
    problems = []
    for name in sorted(values.keys() | corridor.keys() - {"versions"}):
        if name not in values or name not in corridor:
            problems.append(f"{name} is in the {'training' if name in values else 'corridor'} alone")
            continue
        mean, width = corridor[name]["mean"], half_width(name, corridor[name])
        if not abs(values[name] - mean) <= width:  # NaN is outside too
            problems.append(f"{name} {values[name]:.4f}, expected {mean:.4f} +- {width:.4f}")
    return problems


def half_width(name: str, spread: dict[str, float]) -> float:
    smallest = SMALLEST[name] * (abs(spread["mean"]) if name == "loss" else 1.0)
    return max(WIDTH * spread["sd"], smallest)


def stored() -> dict[str, Any]:
    return yaml.safe_load(CORRIDORS.read_text()) if CORRIDORS.exists() else {}


def stale(names: Iterable[str], corridors: dict[str, Any]) -> list[str]:
    """The methods that have no corridor, or that of a lower version.

    Raises SystemExit where there is none: a corridor is not moved to where an unchanged version ends up.
    """
    found = []
    for name in names:
        then, now = corridors.get(name, {}).get("versions", {}), versions(name)
        if any(version > then.get(part, 0) for part, version in now.items()):
            found.append(name)
    if not found:
        raise SystemExit("no version was raised since the corridors were measured, expected one (see CONTRIBUTING.md)")
    return found


def update(names: Iterable[str], cache_dir: Path) -> None:
    """Measure the corridors of the methods whose versions were raised."""
    corridors = stored()
    for name in stale(names, corridors):
        runs = [train(name, seed, cache_dir) for seed in range(SEEDS)]
        measured = {
            metric: {"mean": round(fmean(values), 5), "sd": round(stdev(values), 5)}
            for metric in runs[0]
            for values in ([run[metric] for run in runs],)
        }
        corridors[name] = {"versions": versions(name), **measured}
        text = yaml.safe_dump(dict(sorted(corridors.items())), sort_keys=False, default_flow_style=None, width=120)
        CORRIDORS.write_text(f"# Written by corridors.py: mean and sd over {SEEDS} seeds.\n{text}")
        print(name, corridors[name], flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    update(METHODS, Path(tempfile.gettempdir()) / "xmcbench-bench-cache")
