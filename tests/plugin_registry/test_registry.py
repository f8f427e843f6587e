"""Plugins are found, a broken one harms nobody, and a name that nothing answers to is met with the nearest."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from commands import told
from fakes import install
from fakes.bench import Bench

from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins import registry as module
from xmcbench.plugins.hookspecs import GROUPS
from xmcbench.plugins.registry import OWN, Registry, registry

METHOD = """
from xmcbench import Method, MethodInfo, hookimpl

class Mine(Method):
    name = {name!r}
    info = MethodInfo("none")
    def fit(self, train, run): ...
    def predict(self, texts, k): ...
    def save(self, directory): ...
    def load(self, directory): ...

@hookimpl
def {hook}(register):
    register({thing})
"""

TEACHER = """
from xmcbench import hookimpl, teachers

class Mine(teachers.Teacher):
    name = 'mine'
    summary = "none"
    def ask(self, pairs): ...

@hookimpl
def register_teachers(register):
    register(Mine)
"""

CONFIG = """    class Config(Method.Config):
        budget: int = 3
"""


LATE = METHOD.format(name="mine", hook="register_methods", thing="Mine").replace(
    "    def fit", '    late_imports = "numpy"\n    def fit'
)
EXECUTOR = """
from xmcbench import Executor, hookimpl

class Mine(Executor):
    name, summary = "mine", "none"
    def start(self, task): ...

@hookimpl
def register_executors(register):
    register(Mine)
"""
FAMILY = """
from xmcbench import data, hookimpl

@hookimpl
def register_datasets(register):
    register(data.Family("mine-<n>", "[", "made", None))
"""
IMPORTERS = """
from xmcbench import data, hookimpl

class Tabs(data.Importer):
    name, summary = "tabs", "has a method of a common name"
    def matches(self, path):
        return path.suffix == ".tsv"
    def read(self, path):
        return {}

class Spaces(Tabs):
    name = "spaces"

@hookimpl
def register_importers(register):
    register(Tabs)
    register(Spaces)
"""
COMMANDS = """
from typing import Annotated
import typer
from xmcbench import Command, hookimpl

def unread(x: Annotated[int, typer.Option(), typer.Argument()] = 1) -> None: ...
def sound() -> None:
    typer.echo("it ran")
group = typer.Typer(help=3)
@group.command("one")
def one() -> None: ...

@hookimpl
def register_commands(register):
    register(Command("unread", unread))
    register(Command("group", group))
    register(Command("sound", sound))
    register(Command("run", sound))
"""


@pytest.fixture
def site(bench: Bench) -> Iterator[Path]:
    """Where plugins are installed; their modules are forgotten afterwards, for others come under the same names."""
    yield bench.root / "site"
    for path in (bench.root / "site").glob("*.py"):
        sys.modules.pop(path.stem, None)


def plugin(site: Path, module: str, source: str, version: str = "1.0") -> None:
    """Install a distribution of one module."""
    (site / f"{module}.py").write_text(source)
    install(site, module.replace("_", "-"), {module: module}, version)


def method(name: str = "mine", hook: str = "register_methods", thing: str = "Mine") -> str:
    return METHOD.format(name=name, hook=hook, thing=thing)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Odd(BaseException): pass\nraise Odd('end')", "Odd: end"),
        ("class Odd(Exception):\n    __str__ = None\nraise Odd", "Odd: an exception without text: TypeError"),
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
        (method(hook="register_method"), "unknown hook 'register_method'"),
        (method(hook="register_methods", thing="3"), "is not a subclass of xmcbench.Method"),
        (method(hook="register_teachers"), "is not a subclass of xmcbench.teachers.Teacher"),
        (TEACHER.replace("def ask", "def answer"), "Mine does not define ask, write or embed"),
        (TEACHER.replace("summary", "about"), "Mine has no summary"),
        (method(hook="register_datasets"), "is not a Source or a Family of xmcbench.data"),
        (method(hook="register_evaluators"), "does not define compute"),
        (TEACHER.replace("'mine'", "'openai'"), "teacher 'openai' of"),
        (method(thing="Mine()"), "missing 1 required positional argument: 'config'"),
        (method().replace("def save", "def keep"), "Mine does not define save"),
        (method().replace('info = MethodInfo("none")', ""), "Mine.info is not a MethodInfo"),
        (method(name=""), "has no name"),
        (method(name="../up"), "a method is called '../up', expected at most 100 printable characters without /"),
        (method(name="a\nb"), "a method is called 'a\\nb', expected"),
        (method(name="-x"), "a method is called '-x', expected"),
        (method(name="x" * 101), "expected at most 100 printable"),
        (TEACHER.replace("summary", "version = '2'; summary"), "the version of teacher 'mine' is '2', expected"),
        (method().replace('("none")', '("none", needs=(3,))'), "Mine.info.needs is (3,), expected a tuple of texts"),
        (method().replace('("none")', "(None)"), "Mine.info.summary is None, expected a text"),
        (method().replace('("none")', '("none", charges={"flops": "2"})'), "Mine.info.charges['flops'] is '2'"),
        (LATE, "Mine.late_imports is the text 'numpy', expected a tuple: ('numpy',)"),
        (EXECUTOR, "Mine does not define has_room, finished"),
        (FAMILY, "unterminated character set at position 0"),
        (method().replace("(register)", "(register, extra)"), "hook 'register_methods'"),
        (
            method(name="fake-ok"),
            "method 'fake-ok' of zz-broken 1.0 (zz_broken.py:4) is already registered by xmcbench-fakes 1.0",
        ),
        (method().replace("register(Mine)", "register(Mine); register(Mine)"), "already registered by zz-broken 1.0"),
        (method().replace("@hookimpl", ""), "register_methods lacks the decorator @hookimpl"),
        ("x = 1", "it registers nothing, expected a function among register_methods"),
        (method().replace('("none")', '("none", version="2")'), "Mine.info.version is '2', expected a whole number"),
        (
            method().replace("    def fit", CONFIG + "    def fit"),
            "Mine.Config has the setting 'budget'",
        ),
        (
            method().replace("    def fit", CONFIG.replace("budget: int", "size: 'Nowhere'") + "    def fit"),
            "name 'Nowhere' is not defined",
        ),
    ],
)
def test_a_broken_plugin_is_listed_with_its_reason_and_the_tool_goes_on(
    site: Path, source: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(site, "zz_broken", source)
    found = Registry()
    assert "fake-ok" in {each.name for each in found.all("method")}
    (broken,) = [broken for broken in found.broken if broken.distribution == "zz-broken"]
    assert reason in broken.reason
    assert found.method("fake-ok").origin.distribution == "xmcbench-fakes"
    code, shown, _ = told(capsys, "methods")
    assert code == 0
    assert "zz-broken" in shown
    assert reason[:30] in shown
    with pytest.raises(BaseException):  # noqa: B017, PT011  (whatever the plugin raises)
        Registry(strict=True).all("method")


@pytest.mark.parametrize("point", ["a module:x y", ""])
def test_an_entry_point_that_names_no_module_is_a_broken_plugin(site: Path, point: str) -> None:
    install(site, "zz-broken", {"broken": point})
    found = Registry()
    assert "fake-ok" in {each.name for each in found.all("method")}
    (broken,) = [broken for broken in found.broken if broken.distribution == "zz-broken"]
    assert broken.reason == f"found the entry point {point!r}, expected a module"


@pytest.mark.parametrize(
    ("name", "message"), [("entry_points.txt", "not UTF-8"), ("METADATA", "a package with METADATA not in UTF-8")]
)
def test_metadata_that_is_no_text_is_a_line(site: Path, name: str, message: str) -> None:
    plugin(site, "zz_broken", method())
    (site / "zz_broken-1.0.dist-info" / name).write_bytes(b"\xff\xfe")
    with pytest.raises(XMCBenchError, match=message):
        Registry().all("method")


def test_the_listing_names_method_distribution_version_and_needs(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(site, "xmcbench_mine", method(), version="2.5")
    lines = told(capsys, "methods")[1].splitlines()
    (mine,) = [line.split() for line in lines if line.startswith("mine ")]
    assert mine == ["mine", "none", "xmcbench-mine", "2.5"]
    (ok,) = [line for line in lines if line.startswith("fake-ok ")]
    assert ok.split()[-3:] == ["xmcbench-fakes", "1.0", "nothing"]


def test_no_plugin_takes_the_name_of_a_built_in_method(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a distribution is called, the built-in methods are registered before its own."""
    monkeypatch.setattr(module, "OWN", "xmcbench-fakes")
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench-fakes,aa-thief")
    plugin(site, "aa_thief", method(name="fake-ok").replace("name = 'fake-ok'", "name = 'fake-ok'; mine = True"))
    found = Registry()
    assert found.all("method")
    assert not hasattr(found.method("fake-ok").thing, "mine")
    assert [each.reason for each in found.broken] == [
        "method 'fake-ok' of aa-thief 1.0 (aa_thief.py:4) is already registered by xmcbench-fakes 1.0"
    ]


def test_of_two_plugins_that_register_one_name_the_second_is_refused_and_both_are_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", "aa-first,zz-second")
    plugin(site, "aa_first", method())
    plugin(site, "zz_second", method(), version="2.1")
    found = Registry()
    assert [each.origin.distribution for each in found.all("method")] == ["aa-first"]
    assert [each.reason for each in found.broken] == [
        "method 'mine' of zz-second 2.1 (zz_second.py:4) is already registered by aa-first 1.0"
    ]


DATASET = """
from xmcbench import hookimpl
from xmcbench.data import Draft, Source

class Mine(Source):
    draft = Draft(name="catalog-131k", source="made", licence="none")
    def missing(self, data_dir): ...
    def fingerprint(self, data_dir): ...
    def read(self, data_dir): ...

@hookimpl
def register_datasets(register):
    register(Mine())
"""


def test_no_plugin_takes_a_name_of_a_family(site: Path) -> None:
    plugin(site, "zz_broken", DATASET)
    found = Registry()
    assert "catalog-131k" not in {each.name for each in found.all("dataset")}
    assert (
        "dataset 'catalog-131k' of zz-broken 1.0 (zz_broken.py:5) is already registered by xmcbench"
        in found.broken[0].reason
    )


@pytest.mark.usefixtures("site")
def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown method 'fake-okk' \(did you mean 'fake-ok'"):
        Registry().method("fake-okk")
    with pytest.raises(UnknownNameError, match=r"unknown dataset 'fake-2'.*'fake-20'"):
        Registry().thing("dataset", "fake-2")
    with pytest.raises(UnknownNameError, match=r"unknown sampler 'hrad'.*'hard'"):
        Registry().thing("sampler", "hrad")


def test_a_family_answers_to_its_members() -> None:
    assert Registry().thing("dataset", "catalog-77").matches("catalog-77")


def test_a_core_dataset_or_evaluator_imports_no_plugin(site: Path) -> None:
    plugin(site, "zz_watched", "")
    found = Registry()
    found.thing("dataset", "catalog-5k")
    found.thing("evaluator", "nDCG")
    assert "zz_watched" not in sys.modules
    assert found.method("fake-ok", "xmcbench-fakes").name == "fake-ok"
    assert "zz_watched" not in sys.modules
    found.all("method")
    assert sys.modules.pop("zz_watched")


def test_the_built_in_plugins_are_in_the_groups_of_what_they_register() -> None:
    """The registry does not import them for things of another kind."""
    groups: dict[str, set[str]] = {}
    for group, kinds in GROUPS.items():
        for point in entry_points(group=group):
            if point.dist is not None and point.dist.name == OWN:
                groups.setdefault(point.module, set()).update(f"register_{kind}s" for kind in kinds)
    for name, expected in groups.items():
        path = Path(__file__).parents[2] / "plugins" / Path(*name.split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        assert set(re.findall(r"def (register_\w+)", source)) == expected, name


def test_looking_up_a_built_in_method_imports_its_plugin_alone() -> None:
    """An entry point has its name, or the first words of it."""
    points = [point for group in GROUPS for point in entry_points(group=group)]
    for known in registry().all("method"):
        if known.origin.distribution == OWN:
            found = Registry(points)
            found.method(known.name)
            assert {other.module for other in found._things["method"].values()} == {known.module}, known.name


MIXED = """
from xmcbench import hookimpl

from xmcbench_fakes import Ok

class Sound(Ok):
    name = "sound"

class Nameless(Ok):
    name = ""

class Other(Ok):
    name = "other"

@hookimpl
def register_methods(register):
    register(Sound)
    register(Nameless)
    register(Other)
"""


def test_one_broken_method_takes_no_other_of_its_module_with_it(site: Path) -> None:
    plugin(site, "zz_broken", MIXED)
    found = Registry()
    assert {"sound", "other"} <= {each.name for each in found.all("method")}
    (broken,) = found.broken
    assert "has no name" in broken.reason


def test_a_command_needs_the_group_of_commands(site: Path) -> None:
    source = "from xmcbench import Command, hookimpl\n@hookimpl\ndef register_commands(register):\n"
    plugin(site, "zz_broken", source + "    register(Command('mine', print))\n")
    found = Registry()
    found.all("method")
    assert "in the entry-point group xmcbench.commands" in found.broken[0].reason


def test_a_plugin_of_a_group_is_imported_for_that_kind_only(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCBENCH_PLUGINS", "zz-watched")
    (site / "zz_watched.py").write_text(TEACHER)
    install(site, "zz-watched", {"watched": "zz_watched"}, group="xmcbench.teachers")
    found = Registry()
    found.all("method")
    found.all("command")
    assert "zz_watched" not in sys.modules
    assert "mine" in {each.name for each in found.all("teacher")}


def test_a_third_party_method_does_not_take_a_built_in_name_whatever_is_looked_up_first(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OWN", "xmcbench-fakes")
    monkeypatch.setenv("XMCBENCH_PLUGINS", "xmcbench-fakes,aa-thief")
    plugin(site, "aa_thief", method(name="fake-ok"))
    found = Registry()
    found.all("teacher")
    assert found.method("fake-ok").origin.distribution == "xmcbench-fakes"
    assert "aa-thief" in found.broken[0].reason


def test_plugins_can_be_left_out(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(site, "zz_watched", method())
    monkeypatch.setenv("XMCBENCH_PLUGINS", "zz-watched,another")
    assert [found.name for found in Registry().all("method")] == ["mine"]


def test_a_method_called_matches_is_no_family(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(site, "zz_broken", IMPORTERS)
    found = Registry()
    assert {"tabs", "spaces"} <= {each.name for each in found.all("importer")}
    assert not found.broken
    registry.cache_clear()
    _, _, errors = told(capsys, "datasets", "import", site, "--format", "tab")
    assert errors.startswith("error: --format: unknown format 'tab' (did you mean 'tabs'")


def test_a_command_that_typer_cannot_read_is_left_out_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "zz_broken.py").write_text(COMMANDS)
    install(site, "zz-broken", {"zz": "zz_broken"}, group="xmcbench.commands")
    registry.cache_clear()
    code, shown, _ = told(capsys, "--help")
    assert (code, "sound" in shown, "unread" in shown, "group" in shown) == (0, True, False, False)
    assert told(capsys, "sound")[:2] == (0, "it ran\n")
    code, _, errors = told(capsys, "unread")
    assert (code, "No such command 'unread'" in errors) == (2, True)
    assert "note: broken plugins: zz (`xmcbench methods` shows why)" in errors
    reasons = [broken.reason for broken in registry().broken]
    assert "MultipleTyperAnnotationsError: Cannot specify multiple `Annotated` Typer arguments for 'x'" in reasons
    assert any(
        reason.startswith("command 'run' of zz-broken 1.0 is already registered by xmcbench") for reason in reasons
    )
    assert len(reasons) == 3


def test_the_registry_of_a_process_is_made_once() -> None:
    assert registry() is registry()
