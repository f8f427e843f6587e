"""A served model: what a request needs is made once, for any number of requests, and the answers are those of one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import mapped
from toy import LABELS, make_run

from xmcbench import XMCBenchError, registry, search
from xmcbench.data.dataset import TrainingData
from xmcbench.engine import dual_encoder
from xmcbench.engine.dual_encoder import VECTORS
from xmcbench.engine.encoders.tokenizer import TextTokenizer


def made(kind: str, encoder: str) -> Any:
    dual = {"encoder": {"name": encoder}, "negatives": "in-batch", "batch_size": 20}
    first = {"method": "dexml", **dual}
    given: dict[str, Any] = {
        "dexml": dual,
        "sparse-ranker": {"first": first},
        "memory": {"first": first, "similarity": "l2"},
        "fuse": {"parts": [first, {"method": "popular"}], "held_out": 20},
        "unidec": {"encoder": {"name": encoder}, "batch_size": 20},
        "untrained": {"encoder": {"name": encoder}},
    }
    method = registry().method(kind).thing
    return method(method.Config.model_validate(given[kind]))


@pytest.mark.parametrize("kind", ["dexml", "sparse-ranker", "memory", "fuse"])
def test_many_requests_copy_no_tokenizer_and_build_no_index(
    kind: str, data: TrainingData, small_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = made(kind, small_encoder)
    method.fit(data, make_run(tmp_path, {"steps": 10}))
    once = method.predict(data.texts, 5)
    work: Counter[str] = Counter()
    for where, name in ((TextTokenizer, "backend"), (dual_encoder, "build_index"), (search, "build_index")):
        plain = getattr(where, name)

        def counted(*given: Any, plain: Any = plain, name: str = name) -> Any:
            work[name] += 1
            return plain(*given)

        monkeypatch.setattr(where, name, counted)
    with method.resident():
        rows = [method.predict([text], 5) for text in data.texts]
    assert work == {"build_index": 1}
    assert np.array_equal(np.concatenate([row.indices for row in rows]), once.indices)
    method.predict(data.texts[:1], 5)
    assert work == {"build_index": 2}, "nothing is kept after the block"


@pytest.mark.parametrize("kind", ["untrained", "memory"])
def test_a_label_that_is_added_while_resident_is_ranked(
    kind: str, data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = made(kind, small_encoder)
    method.fit(data, make_run(tmp_path, {"steps": 1}))
    with method.resident():
        method.add_labels(["a wholly new one"])
        assert LABELS in method.predict(["a wholly new one"], LABELS + 1).indices


@pytest.mark.parametrize("kind", ["dexml", "sparse-ranker"])
def test_a_resident_model_gives_up_the_vectors_that_its_index_rounds(
    kind: str, data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    method = made(kind, small_encoder)
    method.fit(data, make_run(tmp_path, {"steps": 10}))
    dual = next(each for each in (method, *method.inner_methods) if isinstance(each, dual_encoder.DualEncoder))
    dual.config = dual.config.model_copy(update={"vectors": "int8"})
    once = method.predict(data.texts, 5)
    with method.resident():
        assert dual.index_LD.is_meta
        assert np.array_equal(method.predict(data.texts, 5).indices, once.indices)
        with pytest.raises(XMCBenchError, match="keeps its label vectors in int8 alone: load it again"):
            dual.add_labels(["a new label"])
    with pytest.raises(XMCBenchError, match="load it again"):
        method.predict(data.texts, 5)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads resident memory from Linux")
def test_of_a_loaded_model_with_modules_only_the_rounded_vectors_stay(
    data: TrainingData, small_encoder: str, tmp_path: Path
) -> None:
    """The modules are in the same file as the label vectors, and are used on."""
    method, loaded = made("unidec", small_encoder), made("unidec", small_encoder)
    method.fit(data, make_run(tmp_path, {"steps": 2}))
    method.index_LD = torch.randn(50_000, method.index_LD.shape[1])
    method.save(tmp_path)
    loaded.config = loaded.config.model_copy(update={"vectors": "bf16"})
    loaded.load(tmp_path)
    size = method.index_LD.nbytes
    assert mapped(tmp_path / VECTORS) < size, "pages are read when they are used"
    expected = loaded.predict(data.texts, 5)
    assert mapped(tmp_path / VECTORS) > size
    with loaded.resident():
        assert mapped(tmp_path / VECTORS) < size // 10
        assert np.array_equal(loaded.predict(data.texts, 5).indices, expected.indices)
