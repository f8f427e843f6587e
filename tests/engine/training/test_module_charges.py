"""What the modules of built-in methods multiply is charged as torch counts it, on any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from many_workers import on_workers
from toy import make_run, toy_data, two_steps

from xmcbench.engine.embedding_method import EmbeddingMethod
from xmcbench.engine.workers import ALONE, Workers
from xmcbench.plugins.registry import registry

DATA = toy_data(ignored=1)
CLUSTERS = {"cluster_size": 4, "cluster_start": 1, "cluster_every": 1}
OFTEN = {"refresh_start": 0, "refresh_every": 1}
METHODS: dict[str, dict[str, Any]] = {
    "unidec": {"negatives_per_query": 2, "dimension": 24, "rows": "label-embeddings", **OFTEN},
    "prime": {"free_vectors": 16, "feedforward": 64, **CLUSTERS},
    "dexa": {"auxiliary_vectors": 16, **CLUSTERS},
    "dexml": {"negatives": "hard", "shortlist": 8, **OFTEN},
}
WITHIN = 0.05


def built(name: str, encoder: dict[str, Any]) -> EmbeddingMethod:
    kind = registry().method(name).thing
    return kind(kind.Config.model_validate({"encoder": encoder, "batch_size": 20} | METHODS[name]))


def charged(_workers: Workers, root: str, name: str, encoder: dict[str, Any]) -> dict[str, int]:
    run = make_run(Path(root), {"steps": 7})
    built(name, encoder).fit(DATA, run)
    return {count: getattr(run.ledger, count) for count in ("steps", "encoder_flops", "module_flops", "scoring_flops")}


@pytest.mark.parametrize("name", METHODS)
def test_the_charge_is_the_same_on_any_number_of_workers(name: str, tmp_path: Path) -> None:
    encoder = {"name": "static", "words": "random", "dimension": 32}
    alone = charged(ALONE, str(tmp_path / "alone"), name, encoder)
    assert (alone["module_flops"] > 0) == (name in ("unidec", "prime"))
    for found in on_workers(2, charged, str(tmp_path / "two"), name, encoder):
        for count in ("steps", "encoder_flops", "module_flops"):
            assert found[count] == alone[count], count


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_charged_what_torch_counts(name: str, tmp_path: Path) -> None:
    """Beside the mean of word vectors, which is no product to torch."""
    method = built(name, {"name": "static", "words": "random", "dimension": 32})
    run = make_run(tmp_path, {"steps": 100})
    charged, counter = two_steps(method, DATA, run)
    counted = counter.get_total_flops()
    assert charged == pytest.approx(counted, rel=WITHIN)
    assert counted > 0
