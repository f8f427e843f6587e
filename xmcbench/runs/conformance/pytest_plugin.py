"""The conformance suite as a pytest plugin, loaded by `-p xmcbench.runs.conformance.pytest_plugin`.

With it `pytest --xmcbench-method=my-method` adds a test for each rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

KINDS = ("method", "sampler", "evaluator", "dataset", "teacher", "tracker")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for each kind of plugin, and one for settings."""
    group = parser.getgroup("xmcbench", "contracts of xmcbench plugins")
    for kind in KINDS:
        group.addoption(f"--xmcbench-{kind}", action="append", default=[], metavar="NAME", help=f"check this {kind}")
    group.addoption("--xmcbench-set", action="append", default=[], metavar="KEY=VALUE", help="a setting for the checks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the rules of the plugins that the options name to the tests that were collected."""
    for kind in KINDS:
        for name in session.config.getoption(f"xmcbench_{kind}"):
            items.extend(Contract.from_parent(session, name=f"{kind} {name}", kind=kind, plugin=name).collect())


class Contract(pytest.Collector):
    """The rules of one plugin. They share a subject, and with it what is expensive to make."""

    def __init__(self, *, kind: str, plugin: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._kind, self._plugin = kind, plugin
        self._folder: TemporaryDirectory[str] | None = None

    def collect(self) -> Iterator[RuleItem]:
        from xmcbench.runs.conformance.suite import rules_of

        for rule in rules_of(self._kind):
            yield RuleItem.from_parent(self, name=rule.name, rule=rule)

    def subject(self) -> Any:
        """What the rules are checked on; made for the first rule."""
        from xmcbench.data.prepared import default_data_dir
        from xmcbench.runs.conformance.suite import make_subject, read_settings

        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="xmcbench-check-")
            settings = read_settings(self.config.getoption("xmcbench_set"))
            folder = Path(self._folder.name)
            self._subject = make_subject(self._kind, self._plugin, settings, folder, default_data_dir())
        return self._subject


class RuleItem(pytest.Item):
    """The test of one rule."""

    def __init__(self, *, rule: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self._rule = rule

    def runtest(self) -> None:
        from xmcbench.runs.conformance.rules import outcome

        assert isinstance(self.parent, Contract)
        result = outcome(self._rule, self.parent.subject())
        if result.found is not None:
            pytest.fail(result.explanation, pytrace=False)
        if result.skipped:
            pytest.skip(result.skipped)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.config.rootpath, None, f"{self.parent.name if self.parent else ''}: {self.name}"
