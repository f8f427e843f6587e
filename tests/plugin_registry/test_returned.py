"""What a third-party plugin takes and returns is looked at: a mistake is one line that names the plugin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import told
from fakes import install
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.reporting.archive import archive
from xmcbench.reporting.names import named_methods
from xmcbench.reporting.published import claims_of_papers, published_rows

HEAD = """
import numpy as np
import scipy.sparse as sp
from xmcbench import *
from xmcbench import data, evaluation, tracking
from xmcbench_fakes import Ok, TwentyLabels
"""


@pytest.fixture
def site(bench: Bench) -> Iterator[Path]:
    """Where plugins are installed; their module is forgotten afterwards."""
    yield bench.root / "site"
    sys.modules.pop("zz_broken", None)


def plugin(site: Path, source: str, group: str = "xmcbench") -> None:
    """Install a plugin of this source."""
    (site / "zz_broken.py").write_text(HEAD + source)
    install(site, "zz-broken", {"zz": "zz_broken"}, group=group)
    registry.cache_clear()


IMPORTER = """
class Mine(data.Importer):
    name, summary = "mine", "mine"
    {body}

def rows(text="a", labels=("x",)):
    return [data.Row(f"{{text}} {{i}}" if text == "a" else text, labels, f"file:{{i}}") for i in range(5)]

@hookimpl
def register_importers(register):
    register(Mine)
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("read = lambda self, path: None", "read returned None, expected a dictionary with the parts train and test"),
        ("read = lambda self, path: {'train': []}", "read returned ['train'], expected"),
        ("read = lambda self, path: {'train': [], 'test': [], 'dev': []}", "read returned ['dev', 'test', 'train']"),
        ("read = lambda self, path: {'train': 3, 'test': 4}", "'int' object is not iterable"),
        ("read = lambda self, path: {'train': [('a',)], 'test': []}", "read yielded ('a',), expected an xmcbench.data"),
        ("read = lambda self, path: {'train': rows(text=3), 'test': []}", "file:0: the text is 3, expected a str"),
        ("read = lambda self, path: {'train': rows(labels='ab'), 'test': []}", "file:0: the labels are 'ab', expected"),
        ("read = lambda self, path: {'train': rows(labels=[1]), 'test': []}", "file:0: the labels are [1], expected"),
        ("read = lambda self: {}", "takes 1 positional argument but 2 were given"),
        ("def read(self, path):\n        yield 1 / 0", "read returned <generator"),
        ("write = lambda self, path, folder: None", "write returned None, expected an xmcbench.data.importer.Imported"),
        ("def __init__(self, more): ...\n    read = lambda self, path: {}", "missing 1 required positional argument"),
    ],
)
def test_an_importer(site: Path, body: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, IMPORTER.format(body=body))
    data = site.parent / "data"
    arguments = ("datasets", "import", site, "--name", "new", "--format", "mine", "--data", data)
    code, _, errors = told(capsys, *arguments)
    assert code == 2
    assert errors.startswith("error: importer 'mine' of zz-broken 1.0: TypeError: ")
    assert reason in errors
    assert len(errors.splitlines()) == 1
    assert not list(data.glob("*")) + list(data.glob(".*"))


FORMAT = """
from pathlib import Path

@hookimpl
def register_formats(register):
    register(Format("mine", "mine", {write}))
"""


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        ("lambda shown, output: None", "TypeError: write returned None, expected a text or a list of paths"),
        ("lambda shown, output: ['a']", "TypeError: write returned ['a'], expected a text or a list of paths"),
        ("lambda shown, output: [Path('gone')]", "ValueError: write returned the path gone, where it wrote nothing"),
        ("lambda shown: ''", "takes 1 positional argument but 2 were given"),
        ("lambda shown, output: '\\ud800'", "UnicodeEncodeError: "),
    ],
)
def test_a_format(bench: Bench, site: Path, write: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(bench.suite(["fake-ok"]))
    plugin(site, FORMAT.format(write=write))
    code, _, errors = told(capsys, "leaderboard", "--source", "measured", "--format", "mine", *bench.places)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("error: format 'mine' of zz-broken 1.0: ")
    assert reason in errors


EXECUTOR = """
class Mine(Executor):
    name, summary = "mine", "mine"
    def has_room(self, needs):
        return True
    def start(self, task):
        self.task = task
    def finished(self):
        return []
    {body}

@hookimpl
def register_executors(register):
    register(Mine)
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("finished = lambda self: None", "TypeError: 'NoneType' object is not iterable"),
        ("finished = lambda self: [3]", "TypeError: finished returned 3, expected records of trials that were running"),
        ("has_room = lambda self: True", "takes 1 positional argument but 2 were given"),
        ("def __init__(self, more): ...", "missing 1 required positional argument: 'more'"),
    ],
)
def test_an_executor(bench: Bench, site: Path, body: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, EXECUTOR.format(body=body))
    suite = bench.suite(["fake-ok"])
    code, _, errors = told(capsys, "run", suite, "--executor", "mine", *bench.places)
    assert code == 2
    assert errors.splitlines()[-1].startswith("error: executor 'mine' of zz-broken 1.0: ")
    assert reason in errors
    assert bench.plan(suite)["ok"][0] in ("run", "resume")  # nothing holds the trial


def test_an_executor_that_gives_a_record_twice(bench: Bench, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, EXECUTOR.format(body="finished = lambda self: [self.task.outcome('gone')] * 2"))
    code, output, errors = told(capsys, "run", bench.suite(["fake-ok"]), "--executor", "mine", *bench.places)
    assert (code, "Traceback" in errors, "error: gone" in output) == (1, False, True)


def test_a_tracker_whose_constructor_takes_nothing(
    bench: Bench, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "class Mine(tracking.Tracker):\n    name = 'mine'\n    def __init__(self): ...\n"
    plugin(site, source + "@hookimpl\ndef register_trackers(register): register(Mine)")
    code, _, errors = told(capsys, "run", bench.suite(["fake-ok"]), "--track", "mine", *bench.places)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("error: tracker 'mine' of zz-broken 1.0: TypeError: Mine.__init__() takes 1 positional")


DATASET = """
from dataclasses import replace

class Mine(TwentyLabels):
    draft = data.Draft(name="mine", source="made", licence="none")
    def read(self, data_dir):
        made = super().read(data_dir)
        train = made.train
        return {made}

@hookimpl
def register_datasets(register):
    register(Mine())
    register(data.Family("of-<n>", "of-[0-9]+", "made", lambda name: None))
"""


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("replace(made, ignore_test=None)", "ignore_test as NoneType, expected a scipy.sparse.csr_array"),
        ("replace(made, train=replace(train, targets=train.targets.tocoo()))", "train_targets as coo_array, expected"),
        ("replace(made, ignore_train=sp.csr_array((30, 21)))", "ignore_train of shape [30, 21], expected [30, 20]"),
        ("replace(made, train=replace(train, targets=train.targets * np.nan))", "train_targets with values that are"),
        ("replace(made, label_texts=['a'])", "1 texts as labels, expected 20 by its card"),
        ("replace(made, label_texts=[None] * 20)", "AttributeError: 'NoneType' object has no attribute 'encode'"),
        ("replace(made, label_texts=['\\ud800'] * 20)", "UnicodeEncodeError: 'utf-8' codec"),
    ],
)
def test_a_dataset(bench: Bench, site: Path, made: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, DATASET.format(made=made))
    code, _, errors = told(capsys, "run", bench.suite(["fake-ok"], datasets=["mine"]), "--dry-run", *bench.places)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("error: dataset ")
    assert "mine" in errors
    assert reason in errors


def test_a_family_that_makes_nothing(bench: Bench, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, DATASET.format(made="made"))
    code, _, errors = told(capsys, "run", bench.suite(["fake-ok"], datasets=["of-3"]), "--dry-run", *bench.places)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "dataset of-3: make returned None, expected an xmcbench.data.Source" in errors


EVALUATOR = """
class Mine:
    name, summary = "Mine", "mine"
    compute = lambda self, hits, k: 0.5
    def terms(self, hits, k):
        ones = np.ones(hits.num_queries)
        return {terms}

@hookimpl
def register_evaluators(register):
    register(Mine())
"""


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        ("3", "TypeError: terms returned 3, expected an xmcbench.evaluation.MetricTerms"),
        ("evaluation.MetricTerms(ones, ones[:3])", "ValueError: terms returned arrays of shapes (40,) and (3,)"),
        ("evaluation.MetricTerms(1.0, 2.0)", "ValueError: terms returned arrays of shapes () and ()"),
        ("evaluation.MetricTerms(ones * np.nan, ones)", "ValueError: terms returned a number that is not finite"),
    ],
)
def test_the_terms_of_an_evaluator(bench: Bench, site: Path, terms: str, reason: str) -> None:
    plugin(site, EVALUATOR.format(terms=terms))
    record = bench.run(bench.suite(["fake-ok"], metrics=["P@1", "Mine@1"]))["ok"]
    assert record.failure is not None
    assert record.failure.message.startswith(f"the evaluator of Mine@1 failed: {reason}")


RESULTS = """
class Mine(Results):
    name = "mine"
    {body}

@hookimpl
def register_results(register):
    register(Mine())
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("rows = lambda self: None", "'NoneType' object is not iterable"),
        ("rows = lambda self: [3]", "rows returned 3, expected instances of PublishedRow"),
        ("claims = lambda self: [3]", "claims returned 3, expected claims"),
        ("methods = lambda self: ['a']", "methods returned 'a', expected instances of NamedMethod"),
        ("store = 'results'", "store is 'results', expected a Path"),
    ],
)
def test_results(bench: Bench, site: Path, body: str, reason: str) -> None:
    plugin(site, RESULTS.format(body=body), group="xmcbench.results")
    with pytest.raises(XMCBenchError) as told_so:
        published_rows(), claims_of_papers(), named_methods(), archive(bench.store.root)
    assert str(told_so.value).startswith("result 'mine' of zz-broken 1.0: TypeError: ")
    assert reason in str(told_so.value)
