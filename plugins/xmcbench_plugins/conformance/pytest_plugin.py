"""The conformance suite as a pytest plugin, loaded by `-p xmcbench_plugins.conformance.pytest_plugin`.

With it `pytest --xmcbench-method=my-method` adds a test for each rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from xmcbench_plugins.conformance.rules import KINDS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for each kind of plugin, and one for settings."""
    group = parser.getgroup("xmcbench", "contracts of xmcbench plugins")
    for kind in KINDS:
        group.addoption(f"--xmcbench-{kind}", action="append", default=[], metavar="NAME", help=f"check this {kind}")
    group.addoption("--xmcbench-set", action="append", default=[], metavar="KEY=VALUE", help="a setting for the checks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the rules of the plugins that the options name to the tests that were collected."""
    from xmcbench_plugins.conformance.rules import rules_of

    for kind in KINDS:
        for name in session.config.getoption(f"xmcbench_{kind}"):
            subject = cache(partial(_subject, session.config, kind, name))
            items += [
                RuleItem.from_parent(session, name=f"{kind} {name}: {rule.name}", rule=rule, subject=subject)
                for rule in rules_of(kind)
            ]


def _subject(config: pytest.Config, kind: str, name: str) -> Any:
    """What the rules of a plugin are checked on, in a folder that is removed in the end."""
    from xmcbench.data.prepared import default_data_dir
    from xmcbench_plugins.conformance.rules import make_subject, read_settings

    folder = TemporaryDirectory(prefix="xmcbench-check-")
    config.add_cleanup(folder.cleanup)
    settings = read_settings(config.getoption("xmcbench_set"))
    return make_subject(kind, name, settings, Path(folder.name), default_data_dir())


class RuleItem(pytest.Item):
    """The test of one rule. The rules of a plugin share a subject, and with it what is expensive to make."""

    def __init__(self, *, rule: Any, subject: Callable[[], Any], **settings: Any) -> None:
        super().__init__(**settings)
        self._rule, self._subject = rule, subject

    def runtest(self) -> None:
        from xmcbench_plugins.conformance.rules import outcome

        result = outcome(self._rule, self._subject())
        if result.broken:
            pytest.fail(result.explanation, pytrace=False)
        if result.found is not None:
            warnings.warn(result.explanation, stacklevel=1)
        if result.skipped:
            pytest.skip(result.skipped)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.config.rootpath, None, self.name
