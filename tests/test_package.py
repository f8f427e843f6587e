"""The package as a whole: what it depends on, and how it is checked."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from test_imports import method_files

import xmcbench
from xmcbench.files import yaml_lines
from xmcbench.plugins.registry import FIRST_PARTY

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = [*(ROOT / "xmcbench").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
CI = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
NAMES_THAT_SAY_NOTHING = {"utils", "helpers", "common", "misc"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pins() -> dict[str, str]:
    """The versions of constraints.txt, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in pairs}


# How it is written ------------------------------------------------------------------------------------------------


def test_modules_have_names_that_say_something() -> None:
    assert not [name(path) for path in SOURCES if path.stem in NAMES_THAT_SAY_NOTHING]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Every (module, name) that a file imports; the name is empty for a plain import."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_plugins_use_public_names_only() -> None:
    """Names of `xmcbench.__all__`, and of the modules among them what their own `__all__` lists."""
    for path in method_files():
        for module, what in imported(path):
            if module.split(".")[0] == "xmcbench":
                public = bool(what) and what in xmcbench.__all__
                assert (module, public) == ("xmcbench", True), f"{name(path)}: {module} {what}"
        assert used(path) <= public_members(), name(path)


def used(path: Path) -> set[str]:
    """The members of public modules that a plugin uses, as `data.Texts`; variables may have a module's name."""
    modules = {what for module, what in imported(path) if module == "xmcbench"}
    bound = {node.arg for node in ast.walk(tree(path)) if isinstance(node, ast.arg)}
    bound |= {n.id for n in ast.walk(tree(path)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    attributes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    members = [(ast.unparse(node.value), node.attr) for node in attributes if isinstance(node.value, ast.Name)]
    modules = {what for what in modules if isinstance(getattr(xmcbench, what), ModuleType)}
    return {f"{of}.{attr}" for of, attr in members if of in modules and (of not in bound or attr[0].isupper())}


def public_members() -> set[str]:
    modules = {what: getattr(xmcbench, what) for what in xmcbench.__all__}
    return {f"{of}.{attr}" for of, own in modules.items() if isinstance(own, ModuleType) for attr in own.__all__}


def test_nothing_is_pickled() -> None:
    assert issubclass(yaml_lines._Loader, yaml.constructor.SafeConstructor)
    for path in SOURCES:
        modules = {module.split(".")[0] for module, _ in imported(path)}
        assert not modules & {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}, name(path)
        for call in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            place = f"{name(path)}:{call.lineno}"
            assert called not in {"torch.load", "torch.save", "yaml.unsafe_load", "yaml.full_load"}, place
            assert called != "yaml.load" or ast.unparse(call.args[1]) == yaml_lines._Loader.__name__, place
            assert called != "np.load" or given.get("allow_pickle") == "False", place
            assert given.get("allow_pickle", "False") == "False", place


# What it needs ----------------------------------------------------------------------------------------------------


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(r for extra in extras.values() for r in extra)]]


def test_every_imported_package_is_declared() -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    distributions = packages_distributions()
    outside = set((ROOT / "plugins").rglob("*program.py"))  # run in environments of their own
    outside |= set(ROOT.rglob("pytest_plugin.py"))  # pytest imports it
    outside |= set((ROOT / "plugins" / FIRST_PARTY / "pyxclib").glob("*.py"))  # does nothing where pyxclib is missing
    outside.add(ROOT / "plugins" / FIRST_PARTY / "serving/server.py")  # is imported where the extra is there
    for path in set(SOURCES) - outside:
        for package in {module.split(".")[0] for module, _ in imported(path)} - sys.stdlib_module_names:
            if package.startswith("xmcbench"):
                continue
            assert {canonicalize_name(d) for d in distributions[package]} & declared, f"{name(path)}: {package}"


def test_pinned_versions_are_allowed_ones() -> None:
    pinned = pins()
    for requirement in requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(version), requirement


def test_what_ci_installs_is_pinned() -> None:
    (command,) = (line for line in CI if line.startswith("uv pip install -c constraints.txt"))
    extras = re.findall(r"\w+", command.partition("[")[2])
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    assert {canonicalize_name(Requirement(line).name) for line in lines} <= set(pins())
    assert f"pip install torch=={pins()['torch']}" in CI


def test_built_in_methods_come_through_the_entry_points() -> None:
    declared = {module for points in PROJECT["entry-points"].values() for module in points.values()}
    assert {".".join(module.split(".")[:2]) for module in declared} == {
        f"{FIRST_PARTY}.{path.parent.name}" for path in (ROOT / "plugins" / FIRST_PARTY).glob("*/__init__.py")
    }


# How it is checked ------------------------------------------------------------------------------------------------


def test_the_readme_says_what_ci_runs() -> None:
    installs = [line.removeprefix("uv ") for line in CI if re.match(r"(uv )?pip install (torch|-c)", line)]
    tests = " && ".join([*installs, CI[-1].removesuffix(" -m 'not slow'")])  # which long tests are left out of
    blocks = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert CI[-1].startswith("pytest")
    assert tests in blocks


def test_ci_stops_at_the_first_failure() -> None:
    assert "set -euo pipefail" in CI
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert {"ruff check", "ruff format --check", "hadolint Dockerfile", "mypy"} <= set(CI)


def test_the_image_has_the_pinned_packages() -> None:
    """`hadolint` knows the rules of a Dockerfile, not those of this project."""
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"pip install (.*?) \\$", image, flags=re.MULTILINE):
        assert f"torch=={pins()['torch']}" in line or "-c constraints.txt" in line, line
    for extra in re.findall(r"[\w-]+", "".join(re.findall(r"'\.\[(.*?)\]'", image))):
        assert extra in PROJECT["optional-dependencies"], extra
    for version in re.findall(r"^FROM python:([\d.]+)", image, flags=re.MULTILINE):
        assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_pre_commit_uses_the_tools_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    for hook in (hook for repo in config["repos"] for hook in repo["hooks"]):
        assert hook["language"] == "system", hook
        assert any(line.startswith(hook["entry"].removesuffix(" --fix")) for line in CI), f"CI does not run {hook}"
