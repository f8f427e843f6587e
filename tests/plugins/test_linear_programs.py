"""Methods that run in environments of their own: made, pointed at, or skipped; and each where it is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from fakes import install_own
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st
from toy import LABELS, make_run, toy_data

from xmcbench.data.dataset import TrainingData
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import check_predictions
from xmcbench.plugins.registry import Registry
from xmcbench.trial.programs import Environment
from xmcbench.trial.record import Status
from xmcbench_plugins.external import OutsideMethod, PythonProgram
from xmcbench_plugins.linear import LinearOneVsRest

METHODS = [each.thing for each in Registry().all("method") if issubclass(each.thing, PythonProgram)]
DATA, IDS = toy_data(), [method.name for method in METHODS]
SMALL = {"pecos-xrtransformer": {"encoder": "nano", "steps": 20, "max_query_length": 16}}
INSTALLED = "XMCBENCH_TEST_ENVIRONMENTS"  # a cache in which `xmcbench environment` made or named environments


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_without_an_environment_a_trial_is_skipped_and_told_how(
    method: type[PythonProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path))
    reason = method(method.Config()).skip(toy_data().card)
    assert reason is not None
    assert f"`xmcbench environment make {method.name}`" in reason


def test_an_environment_is_pointed_at_or_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path))
    environment = Environment("mine", requirements=())
    assert environment.python() is None
    environment.use(Path(sys.executable))
    assert environment.python() == Path(sys.executable)
    assert Environment("mine", requirements=("more",)).python() is None
    with pytest.raises(XMCBenchError, match="cannot be run, expected a Python interpreter"):
        environment.use(tmp_path / "absent")


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_it_finds_the_labels_of_what_it_was_trained_on(
    method: type[PythonProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.environ.get(INSTALLED):
        pytest.skip(f"needs ${INSTALLED}, a cache with the environments of outside methods")
    monkeypatch.setenv("XMCBENCH_CACHE", os.environ[INSTALLED])
    config = method.Config(**SMALL.get(method.name, {}))
    data, fitted = toy_data(), method(config)
    if reason := fitted.skip(data.card):
        pytest.skip(reason)
    given = make_run(tmp_path, {"device_seconds": 300})
    given.checkpoint.mkdir(parents=True)
    fitted.fit(data, given)
    best = fitted.predict(data.texts, 5)
    labelled = np.flatnonzero(np.diff(data.targets.indptr))
    hits = [data.targets[[query]].indices.tolist().count(best.indices[query, 0]) for query in labelled]
    assert np.mean(hits) > 0.5  # by chance 0.06
    fitted.save(tmp_path / "saved")
    loaded = method(config)
    loaded.load(tmp_path / "saved")
    assert (loaded.predict(data.texts, 5).indices == best.indices).all()


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_characters_are_tried_where_a_program_reads_them(method: type[PythonProgram]) -> None:
    space = method.search_space(method.Config())
    assert space.keys() == {"characters", "ngrams"} & method.Config.model_fields.keys()
    for name, values in space.items():
        assert getattr(method.Config(), name) in values, "the default is tried"
        assert len({getattr(method.Config.model_validate({name: value}), name) for value in values}) == 2


ODD = {  # by kind: the text of rows, and whether they have no label, one or all of them
    "no term": (".", 1),
    "no label": ("word", 0),
    "all labels": ("word other", LABELS),
    "one word": ("a", 1),
    "empty": ("", LABELS),
    "duplicate": (DATA.texts[0], 1),
}


def odd_data(kinds: Iterable[str]) -> TrainingData:
    """The toy data, the first rows of which are such odd ones, two of each kind."""
    texts, targets = list(DATA.texts), DATA.targets.toarray()
    for place, kind in enumerate(kind for kind in kinds for _ in range(2)):
        text, labels = ODD[kind]
        texts[place] = text
        targets[place] = np.arange(LABELS) < labels
    return replace(DATA, texts=texts, targets=sp.csr_array(targets))


@pytest.mark.parametrize("kinds", [[kind] for kind in ODD] + [list(ODD)], ids=[*ODD, "all"])
@pytest.mark.parametrize("method", [*METHODS, LinearOneVsRest], ids=[*IDS, LinearOneVsRest.name])
def test_odd_rows_end_no_program(
    method: type[OutsideMethod], kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if issubclass(method, PythonProgram):
        if not os.environ.get(INSTALLED):
            pytest.skip(f"needs ${INSTALLED}, a cache with the environments of outside methods")
        monkeypatch.setenv("XMCBENCH_CACHE", os.environ[INSTALLED])
    fitted, run = method(method.Config(**SMALL.get(method.name, {}))), make_run(tmp_path, {"device_seconds": 300})
    if reason := fitted.skip(DATA.card):
        pytest.skip(reason)
    run.checkpoint.mkdir(parents=True)
    data = odd_data(kinds)
    fitted.fit(data, run)
    best = fitted.predict(["", ".", *data.texts], 5)
    check_predictions(best, len(data.texts) + 2, LABELS)


@given(st.lists(st.tuples(st.sampled_from([".", "", "  ", "a b", "ä", "\n"]), st.booleans()), min_size=1, max_size=6))
def test_rows_that_teach_nothing_are_counted(rows: list[tuple[str, bool]]) -> None:
    texts, labelled = zip(*rows, strict=True)
    targets = sp.csr_array(np.array([[own] for own in labelled], np.float32))
    data, said = replace(DATA, texts=list(texts), targets=targets, ignore=sp.csr_array(targets.shape)), StringIO()
    worded = [any(map(str.isalnum, text)) for text in texts]
    useful = sum(map(all, zip(worded, labelled, strict=True)))
    method = LinearOneVsRest(LinearOneVsRest.Config())
    with redirect_stdout(said):
        if not useful:
            with pytest.raises(XMCBenchError, match="finds no training text with a word and a label"):
                method._check_rows(data)
            return
        method._check_rows(data)
    counts = f"{worded.count(False)} without a word, {labelled.count(False)} without a label"
    wanted = f"{len(rows) - useful} of {len(rows)} training rows teach linear-ovr nothing: {counts}\n"
    assert said.getvalue() == (wanted if useful < len(rows) else "")


ENVIRONMENT_USER = """
from xmcbench import XMCBenchError, hookimpl
from xmcbench.trial.programs import Environment
from xmcbench_fakes import Ok

class Program(Ok):
    name = "program"
    def predict(self, texts, k):
        if Environment("mine", ()).python() is None:
            raise XMCBenchError("no environment")
        return super().predict(texts, k)

@hookimpl
def register_methods(register):
    register(Program)
"""


def test_a_saved_model_finds_the_environment_of_its_program(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked in a process with another home and cache."""
    install_own(bench.root / "site", monkeypatch, "program", ENVIRONMENT_USER)
    monkeypatch.setenv("XMCBENCH_CACHE", str(bench.root / "cache"))
    Environment("mine", ()).use(Path(sys.executable))
    record = bench.run(bench.suite({"p": {"method": "program"}}))["p"]
    assert record.status is Status.OK, record.failure
    assert record.provenance["checks"]["saved model"] == "forked process"
