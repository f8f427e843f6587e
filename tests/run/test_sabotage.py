"""Methods that break the contract without failing: each trial ends as invalid or error, and says which rule."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import dedent

import numpy as np
import psutil
import pytest
from fakes.bench import Bench

from xmcbench.cli import main
from xmcbench.plugins.registry import registry
from xmcbench.run.repeated_predictions import differs
from xmcbench.trial.predictions import Predictions
from xmcbench.trial.record import Record

from fakes import install  # isort: skip

PLUGIN = """
    import json, os, random, subprocess, sys, time
    from pathlib import Path
    import numpy as np
    from pydantic import Field
    from xmcbench import Method, MethodInfo, Predictions, hookimpl, rank
    from xmcbench_fakes import Ok

    print("hello from the plugin")

    class LoadRaises(Ok):
        name = "load-raises"
        def load(self, directory):
            raise ValueError("no such format")

    class LoadOther(Ok):
        name = "load-other"
        def load(self, directory):
            super().load(directory)
            self.popularity = self.popularity[::-1].copy()

    class Global(Ok):
        name = "global"
        def fit(self, train, run):
            super().fit(train, run)
            self.popularity = np.random.rand(train.num_labels).astype(np.float32)

    class Neighbours(Ok):
        name = "neighbours"
        def predict(self, texts, k):
            return super().predict(texts, k) if len(texts) % 2 else Predictions(*(
                part[:, ::1] for part in rank(*self._shifted(len(texts), k), k).__dict__.values()))
        def _shifted(self, n, k):
            scores = np.broadcast_to(self.popularity, (n, len(self.popularity)))
            scores = scores + np.arange(n)[:, None] * (np.arange(len(self.popularity)) % 3)
            return np.broadcast_to(np.arange(len(self.popularity), dtype=np.int32), scores.shape).copy(), scores

    class Reader(Ok):
        name = "reader"
        def fit(self, train, run):
            super().fit(train, run)
            for path in sorted(run.cache.glob("datasets/*/test*")):
                if path.is_file():
                    path.read_bytes()

    class QuietReader(Reader):
        name = "quiet-reader"
        def fit(self, train, run):
            try:
                super().fit(train, run)
            except Exception:
                pass

    class Mutating(Ok):
        name = "mutating"
        class Config(Method.Config):
            depths: list[int] = Field(default=[1])
        def fit(self, train, run):
            super().fit(train, run)
            self.config.depths.append(2)

    class Tuple(Ok):
        name = "tuple"
        def predict(self, texts, k):
            found = super().predict(texts, k)
            return found.indices, found.scores

    class Runaway(Ok):
        name = "runaway"
        def fit(self, train, run):
            child = subprocess.Popen(["sleep", "60"], start_new_session=True)
            (run.cache / "child").write_text(str(child.pid))
            time.sleep(60)

    class BadEvaluator:
        name, summary = "Bad", "raises"
        def compute(self, hits, k):
            if not Path(os.environ["XMCBENCH_CACHE"], "mended").exists():
                raise KeyError("gone")
            return 0.5

    @hookimpl
    def register_methods(register):
        for method in (LoadRaises, LoadOther, Global, Neighbours, Reader, QuietReader, Mutating, Tuple, Runaway):
            register(method)

    @hookimpl
    def register_evaluators(register):
        register(BadEvaluator())
"""


@pytest.fixture
def sabotage(bench: Bench) -> Iterator[Bench]:
    """A bench with the plugin above installed."""
    site = bench.root / "site"
    (site / "xmcbench_mine.py").write_text(dedent(PLUGIN))
    install(site, "xmcbench-mine", {"mine": "xmcbench_mine"})
    registry.cache_clear()
    yield bench
    sys.modules.pop("xmcbench_mine", None)


def ended(bench: Bench, method: str, **keys: object) -> Record:
    return bench.run(bench.suite({"it": {"method": method}}, **keys), cache=bench.root / "cache")["it"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("load-raises", "the saved model cannot be used: ValueError: no such format"),
        ("load-other", "predictions differ from those of the saved model, loaded again: 'test 0' gets 0:"),
        ("neighbours", "predictions depend on the other queries of the call or on their order: 'test"),
        ("reader", "the method opened "),
        ("quiet-reader", "the method opened "),
        ("mutating", "fit changed the method's settings"),
        ("tuple", "predict returned tuple, expected xmcbench.Predictions"),
        ("fake-order", "predictions depend on the other queries of the call or on their order"),
    ],
)
def test_a_broken_contract_is_invalid_and_named(sabotage: Bench, method: str, message: str) -> None:
    record = ended(sabotage, method)
    assert record.status == "invalid", record.failure
    assert record.failure is not None
    assert record.failure.message.startswith(message)
    assert "\n" not in record.failure.message


def test_global_generators_are_seeded(sabotage: Bench) -> None:
    first = ended(sabotage, "global")
    sabotage.store.drop_record(first.key)
    assert first.metrics == ended(sabotage, "global").metrics


def test_a_child_in_a_session_of_its_own_does_not_outlive_a_timeout(sabotage: Bench) -> None:
    assert ended(sabotage, "runaway", timeout=15).status == "timeout"
    child = int((sabotage.root / "cache" / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_predictions_survive_an_evaluator_that_fails(sabotage: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    record = ended(sabotage, "fake-ok", metrics=["P@1", "Bad@1"])
    assert record.status == "error"
    assert record.failure is not None
    assert record.failure.message == "the evaluator of Bad@1 failed: KeyError: 'gone'"
    command = ["rescore", record.key, "--store", str(sabotage.store.root), "--data", str(sabotage.root / "data")]
    with pytest.raises(SystemExit):
        main([*command, "--metrics", "Bad@1"])
    assert "the evaluator of Bad@1 failed" in capsys.readouterr().err.splitlines()[-1]
    (sabotage.root / "cache" / "mended").write_text("")
    with pytest.raises(SystemExit):
        main([*command, "--metrics", "Bad@1"])
    rescored = sabotage.store.record(record.key)
    assert rescored is not None
    assert rescored.status == "ok"
    assert rescored.metrics["Bad@1"] == 0.5


@pytest.mark.usefixtures("sabotage")
def test_plugins_do_not_print_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["methods"])
    told = capsys.readouterr()
    assert "hello" not in told.out
    assert "hello from the plugin" in told.err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("def register_methods(register): ...", "register_methods lacks the decorator @hookimpl"),
        ("x = 1", "it registers nothing, expected a function among register_methods"),
    ],
)
def test_a_plugin_that_registers_nothing_is_broken(
    bench: Bench, content: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (bench.root / "site" / "mine.py").write_text(content)
    install(bench.root / "site", "xmcbench-mine", {"mine": "mine"})
    registry.cache_clear()
    registry().all("method")
    assert [broken.reason.startswith(reason) for broken in registry().broken] == [True]


def test_a_record_says_how_the_contract_was_checked(sabotage: Bench) -> None:
    record = ended(sabotage, "fake-ok")
    assert record.provenance["checks"] == {
        "test files": "audit hook",
        "network": "audit hook",
        "saved model": "forked process",
    }
    assert record.spent["stage_seconds"]["check"] > 0


def scored(rows: list[dict[int, float]], width: int) -> Predictions:
    indices, scores = np.full((len(rows), width), -1, np.int32), np.full((len(rows), width), -np.inf, np.float32)
    for i, row in enumerate(rows):
        indices[i, : len(row)], scores[i, : len(row)] = list(row), list(row.values())
    return Predictions(indices, scores)


def test_predictions_differ_if_they_differ_by_more_than_rounding() -> None:
    first = {4: 0.9, 1: 0.5, 2: 0.4999, 7: 0.1}
    others = [
        ({4: 0.9001, 2: 0.5, 1: 0.4999, 7: 0.1}, False),  # a swap of near ties
        ({4: 0.9, 1: 0.5, 2: 0.4999, 9: 0.1001}, False),  # at the end of the list another label as good
        ({4: 0.9, 1: 0.5, 2: 0.4999, 9: 0.3}, True),
        ({4: 0.7, 1: 0.5, 2: 0.4999, 7: 0.1}, True),
        ({1: 0.5, 2: 0.4999, 7: 0.1}, True),
        ({}, True),
    ]
    for other, expected in others:
        assert differs(scored([first], 4), scored([other], 4)).tolist() == [expected], other
    assert not differs(scored([{}], 4), scored([{}], 4)).any()


@pytest.mark.parametrize(("missed", "expected"), [(2, False), (3, True)])
def test_an_approximate_search_may_miss_a_tenth_of_the_labels(missed: int, expected: bool) -> None:
    row = {label: 1.0 - label / 30 for label in range(20)}
    other = dict(list({label: 1.0 - label / 30 for label in range(20 + missed)}.items())[missed:])
    assert differs(scored([row], 20), scored([other], 20)).tolist() == [expected]
