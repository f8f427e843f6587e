"""Packed predictions: what is packed is unpacked, and metrics follow from it."""

from __future__ import annotations

from pathlib import Path

import claims_predictions
import numpy as np
import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.trial.store import Store
from xmcbench_plugins.board.claims import ClaimFile


@pytest.mark.parametrize("num_labels", [100, 40_000, 1_300_000])
def test_labels_are_unpacked_as_they_were(num_labels: int, tmp_path: Path) -> None:
    labels_TNK = np.random.default_rng(0).integers(-1, num_labels, (3, 20, 10))
    keys = ["0123456789abcdef", "f" * 16, "0" * 16]
    (tmp_path / "a.xz").write_bytes(claims_predictions.pack(keys, labels_TNK, "ab" * 32))
    found, truth = claims_predictions.unpack(tmp_path / "a.xz")
    assert (list(found), truth) == (keys, "ab" * 32)
    assert np.array_equal(np.stack(list(found.values())), labels_TNK)


def test_metrics_of_accepted_trials_follow_from_the_files(bench: Bench, tmp_path: Path) -> None:
    records = bench.run(bench.suite(["fake-ok", "fake-rare"], seeds=[0]), debug=True)
    keys = {"better_keys": (records["ok"].key,), "than_keys": (records["rare"].key,)}
    regime = {"suite": "claims/test", "better": "ok", "than": "rare", **keys}
    claim = {"id": "a", "claim": "a", "paper": {"table": "t", "better": "b", "than": "c"}, "shown": "P@1"}
    file = ClaimFile.model_validate({"claims": (claim | {"regimes": (regime,)},)})
    (line,) = claims_predictions.pack_all(file, bench.store, tmp_path)
    path = tmp_path / "claims-test-fake-20.xz"
    assert line.startswith(f"{path}: 2 trials")
    assert not list(claims_predictions.problems(path, bench.store, bench.root / "data"))
    wrong = records["ok"].model_copy(update={"metrics": records["ok"].metrics | {"P@3": 0.1}})
    bench.store.write_record(wrong)
    (problem,) = claims_predictions.problems(path, bench.store, bench.root / "data")
    assert f"{wrong.key} P@3 is 0.1, its predictions give" in problem
    (problem, _) = claims_predictions.problems(path, Store(tmp_path / "none"), bench.root / "data")
    assert "is not an accepted trial" in problem
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(XMCBenchError, match=r"claims-test-fake-20\.xz: damaged: EOFError"):
        claims_predictions.unpack(path)
