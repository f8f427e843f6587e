"""`xmcbench new` and `check`: write the package of a new plugin, try whether a plugin keeps its contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from xmcbench.cli.options import DataDir, plugin_names
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.runs.terminal import echo

TEMPLATES = Path(__file__).with_name("templates")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Kind(StrEnum):
    """What `xmcbench new` makes."""

    METHOD = "method"
    EMBEDDING_METHOD = "embedding-method"
    SAMPLER = "sampler"
    EVALUATOR = "evaluator"
    DATASET = "dataset"
    TEACHER = "teacher"
    TRACKER = "tracker"
    EXTERNAL = "external"

    @property
    def plugin(self) -> str:
        """The kind of plugin that it is to `xmcbench check`."""
        return "method" if self in (Kind.EMBEDDING_METHOD, Kind.EXTERNAL) else self.value


@dataclass(frozen=True)
class Package:
    """The package of a new plugin, and the values that its templates take."""

    kind: Kind
    name: str

    @property
    def module(self) -> str:
        return f"xmcbench_{self.name.replace('-', '_')}"

    @property
    def class_name(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def registered_name(self) -> str:
        """The name under which the plugin is registered: a metric has that of its class, as in `AnyHit@5`."""
        return self.class_name if self.kind is Kind.EVALUATOR else self.name

    def values(self) -> dict[str, str]:
        track = f" --track {self.name}" if self.kind is Kind.TRACKER else ""
        start = "`program.py` beside it does the work." if self.kind is Kind.EXTERNAL else "Change it step by step."
        return {
            "kind": self.kind.value,
            "rule_kind": self.kind.plugin,
            "name": self.name,
            "registered_name": self.registered_name,
            "module": self.module,
            "distribution": self.module.replace("_", "-"),
            "class_name": self.class_name,
            "command": f"xmcbench run suite.yaml{track}",
            "start": start,
        }

    def files(self) -> dict[str, str]:
        """The files of the package by template, under the folder of templates."""
        own = {
            "plugin.py": f"{self.module}/__init__.py",
            "program.py": f"{self.module}/program.py",
            "suite.yaml": "suite.yaml",
            "test.py": f"tests/test_{self.module}.py",
        }
        found = {f"{self.kind.value}/{name}": path for name, path in own.items()}
        found = {name: path for name, path in found.items() if (TEMPLATES / f"{name}.jinja").exists()}
        return {"common/pyproject.toml": "pyproject.toml", "common/README.md": "README.md", **found}


def new(
    kind: Annotated[Kind, typer.Argument(help="What to make.")],
    name: Annotated[str, typer.Argument(help="Its name: small letters, digits and hyphens.")],
    folder: Annotated[Path | None, typer.Option(help="Where to write it.", show_default="./NAME")] = None,
) -> None:
    """Write an installable package with a new plugin: a working example, a suite, tests, a README."""
    from xmcbench.files.atomic import atomic_write

    package = Package(kind, name)
    target = folder or Path(name)
    _check_name(package)
    if target.exists() and any(target.iterdir()):
        raise XMCBenchError(f"{target}: found files, expected an empty or a new folder; --folder names another")
    for template, path in package.files().items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target / path) as file:
            file.write(_render(template, package.values()).encode())
        echo(str(target / path))
    echo(f"\npip install -e {target}\nxmcbench check {package.registered_name} --kind {kind.plugin}")
    echo(f"(cd {target} && {package.values()['command']})")


def _render(template: str, values: dict[str, str]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment: Any = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return str(environment.get_template(f"{template}.jinja").render(values))


def _check_name(package: Package) -> None:
    """Raise XMCBenchError if the name is malformed or registered."""
    from xmcbench.plugins.registry import registry

    if not NAME.fullmatch(package.name):
        raise XMCBenchError(
            f"name {package.name!r}: expected small letters, digits and single hyphens, as in my-method"
        )
    try:
        registry().thing(package.kind.plugin, package.registered_name)
    except UnknownNameError:
        return
    raise XMCBenchError(f"{package.kind.plugin} {package.registered_name!r} is registered already, expected a new name")


FAILED = 1  # exit code: a rule is broken


def check(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a method, sampler, evaluator, dataset, teacher or tracker.", autocompletion=plugin_names
        ),
    ],
    kind: Annotated[
        Literal["method", "sampler", "evaluator", "dataset", "teacher", "tracker"] | None,
        typer.Option(help="Kind of the plugin, if several have the name."),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of a method or teacher.")
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="Only this rule, by the name that a check prints."),
    ] = None,
    data: DataDir = Path("data"),
) -> None:
    """Check a plugin's contract on tiny data. Exit code: 0 all rules kept; 1 a rule is broken; 2 invalid input."""
    from xmcbench.plugins.registry import registry
    from xmcbench.runs.conformance.suite import checks, find_kind, read_settings

    chosen = kind or find_kind(name)
    broken = 0
    with checks(chosen, name, read_settings(sets or []), data, rules or ()) as results:
        for result in results:
            if result.found is not None:
                broken += 1
                echo(f"BROKEN   {result.rule.name}")
                echo("\n".join(f"         {line}" for line in result.explanation.splitlines()))
            elif result.skipped:
                echo(f"skipped  {result.rule.name}: {result.skipped}")
            else:
                echo(f"ok       {result.rule.name}")
    if chosen == "method" and (hint := registry().import_remark(registry().method(name).origin.distribution)):
        echo(hint)
    if chosen == "method":
        thing = registry().method(name).thing
        echo(
            f"hint: results are kept under version {thing.info.version} of {name}: raise MethodInfo.version with every "
            "change of code that moves results; `xmcbench run` says where code changed and version did not"
        )
    kept = "the chosen rules kept" if rules else "all rules kept"
    echo(f"{chosen} {name}: " + (f"{broken} broken rules" if broken else kept))
    raise typer.Exit(FAILED if broken else 0)
