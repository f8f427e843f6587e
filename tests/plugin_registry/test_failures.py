"""An exception in the code of a third-party plugin is one line that names the plugin and the place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from commands import told
from fakes import install
from fakes.bench import Bench

from xmcbench.cli import main
from xmcbench.plugins.registry import registry

PLUGIN = """
    from xmcbench import hookimpl
    from xmcbench.data import Draft, Source
    from xmcbench_fakes import Ok, TwentyLabels

    class Skips(Ok):
        name = "skips"
        def skip(self, card):
            return 1 / 0

    class Versions(Ok):
        name = "versions"
        @classmethod
        def versions(cls, config):
            return {}["method"]

    class Pair(TwentyLabels):
        draft = Draft(name="pair", source="made", licence="none")
        def read(self, data_dir):
            return super().read(data_dir), None

    @hookimpl
    def register_methods(register):
        register(Skips)
        register(Versions)

    @hookimpl
    def register_datasets(register):
        register(Pair())
"""


@pytest.fixture
def mine(bench: Bench) -> Iterator[Bench]:
    (bench.root / "site" / "xmcbench_mine.py").write_text(dedent(PLUGIN))
    install(bench.root / "site", "xmcbench-mine", {"mine": "xmcbench_mine"})
    registry.cache_clear()
    yield bench
    sys.modules.pop("xmcbench_mine", None)


@pytest.mark.parametrize(
    ("method", "dataset", "message"),
    [
        ("skips", "fake-20", "plugin xmcbench-mine 1.0: xmcbench_mine.py:9: ZeroDivisionError: division by zero"),
        ("versions", "fake-20", "plugin xmcbench-mine 1.0: xmcbench_mine.py:15: KeyError: 'method'"),
        ("fake-ok", "pair", "dataset pair: read returned tuple, expected xmcbench.data.Dataset"),
    ],
)
def test_a_failing_plugin_is_named_on_one_line(
    mine: Bench, method: str, dataset: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = mine.suite({"it": {"method": method}}, datasets=[dataset])
    code, _, errors = told(capsys, "run", suite, "--dry-run", *mine.places)
    assert code == 2
    assert errors.startswith(f"error: {message}")


def test_the_author_of_a_plugin_gets_the_traceback(mine: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_STRICT_PLUGINS", "1")
    suite = mine.suite({"it": {"method": "skips"}})
    with pytest.raises(ZeroDivisionError):
        main(["run", str(suite), "--dry-run", "--store", str(mine.root / "results")])
