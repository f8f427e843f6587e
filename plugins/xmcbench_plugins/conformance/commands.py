"""`xmcbench new` and `check`: write the package of a new plugin, try whether a plugin keeps its contract."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Exit, Option

from xmcbench.cli.options import DataDir, plugin_names
from xmcbench.errors import UnknownNameError, XMCBenchError
from xmcbench.plugins.commands import Command
from xmcbench.plugins.hookspecs import hookimpl
from xmcbench.runs.terminal import echo

TEMPLATES = Path(__file__).with_name("templates")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


Kind = Literal["method", "embedding-method", "sampler", "evaluator", "dataset", "teacher", "tracker", "external"]


def new(
    kind: Annotated[Kind, Argument(help="What to make.")],
    name: Annotated[str, Argument(help="Its name: small letters, digits and hyphens.")],
    folder: Annotated[Path | None, Option(help="Where to write it.", show_default="./NAME")] = None,
) -> None:
    """Write an installable package with a new plugin: a working example, a suite, tests, a README."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from xmcbench.files.atomic import atomic_write

    target, values = folder or Path(name), _values(kind, name)
    if target.exists() and any(target.iterdir()):
        raise XMCBenchError(f"{target}: found files, expected an empty or a new folder; --folder names another")
    environment: Any = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    own = {
        "plugin.py": "{module}/__init__.py",
        "program.py": "{module}/program.py",
        "test.py": "tests/test_{module}.py",
    }
    for source in [*TEMPLATES.glob("common/*"), *sorted(TEMPLATES.glob(f"{kind}/*"))]:
        path = target / own.get(source.stem, source.stem).format(**values)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(environment.get_template(source.relative_to(TEMPLATES).as_posix()).render(values).encode())
        echo(str(path))
    echo(f"\npip install -e {target}\nxmcbench check {values['registered_name']} --kind {values['rule_kind']}")
    echo(f"(cd {target} && {values['command']})")


def _values(kind: Kind, name: str) -> dict[str, str]:
    """The values that templates take. Raises XMCBenchError if the name is malformed or registered."""
    from xmcbench.plugins.registry import registry

    if not NAME.fullmatch(name):
        raise XMCBenchError(f"name {name!r}: expected small letters, digits and single hyphens, as in my-method")
    module, class_name = f"xmcbench_{name.replace('-', '_')}", "".join(map(str.capitalize, name.split("-")))
    plugin = "method" if kind in ("embedding-method", "external") else kind  # to `xmcbench check`
    registered = class_name if kind == "evaluator" else name  # a metric has the name of its class, as in `AnyHit@5`
    with suppress(UnknownNameError):
        registry().thing(plugin, registered)
        raise XMCBenchError(f"{plugin} {registered!r} is registered already, expected a new name")
    return {
        "kind": kind,
        "rule_kind": plugin,
        "name": name,
        "registered_name": registered,
        "module": module,
        "distribution": module.replace("_", "-"),
        "class_name": class_name,
        "command": "xmcbench run suite.yaml" + (f" --track {name}" if kind == "tracker" else ""),
        "start": "`program.py` beside it does the work." if kind == "external" else "Change it step by step.",
    }


FAILED = 1  # exit code: a rule is broken


def check(
    name: Annotated[
        str | None,
        Argument(
            help="Name of a method, sampler, evaluator, dataset, teacher or tracker.", autocompletion=plugin_names
        ),
    ] = None,
    device: Annotated[
        bool, Option("--device", help="Check this machine's GPU instead: versions, kernels, equality, memory.")
    ] = False,
    kind: Annotated[
        Literal["method", "sampler", "evaluator", "dataset", "teacher", "tracker"] | None,
        Option(help="Kind of the plugin, if several have the name."),
    ] = None,
    sets: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting of a method or teacher.")
    ] = None,
    rules: Annotated[
        list[str] | None, Option("--rule", metavar="RULE", help="Only this rule, by the name that a check prints.")
    ] = None,
    data: DataDir = Path("data"),
) -> None:
    """Check a plugin's contract on tiny data, or what this machine's GPU does with xmcbench.

    Exit code: 0 all is well; 1 a rule is broken, or a check failed; 2 invalid input.
    """
    if device == (name is not None):
        raise XMCBenchError("check: expected the NAME of a plugin, or --device, and not both")
    if name is None:
        raise Exit(_check_device())
    from xmcbench.plugins.registry import registry
    from xmcbench_plugins.conformance.rules import checks, find_kind, read_settings

    chosen = kind or find_kind(name)
    for plugin in registry().broken:
        echo(f"note: {plugin.name} of {plugin.distribution} {plugin.version} is broken: {plugin.reason}")
    broken, skipped, kept = 0, 0, 0
    with checks(chosen, name, read_settings(sets or []), data, rules or ()) as results:
        for result in results:
            if result.found is not None:
                broken += result.broken
                echo(f"{'BROKEN ' if result.broken else 'warning'}  {result.rule.name}")
                echo("\n".join(f"         {line}" for line in result.explanation.splitlines()))
            elif result.skipped:
                skipped += 1
                echo(f"skipped  {result.rule.name}: {result.skipped}")
            else:
                kept += 1
                echo(f"ok       {result.rule.name}")
    if chosen == "method":
        method = registry().method(name)
        if hint := registry().import_remark(method.origin.distribution):
            echo(hint)
        echo(
            f"hint: results are kept under version {method.thing.info.version} of {name}: raise MethodInfo.version "
            "with every change of code that moves results; `xmcbench run` says where code changed and version did not"
        )
    verdict = f"{broken} broken rules" if broken else "the chosen rules kept" if rules else "all rules kept"
    if not broken and skipped > kept:
        verdict = f"{skipped} of {skipped + kept} rules could not be checked here"
    echo(f"{chosen} {name}: {verdict}")
    raise Exit(FAILED if broken or skipped > kept else 0)


def _check_device() -> int:
    """Print what the checks of this machine's accelerator find; the exit code."""
    from xmcbench_plugins.conformance.device_check import findings

    failed = 0
    for finding in findings():
        failed += finding.status == "FAILED"
        echo(f"{finding.status:<8} {finding.name}: {finding.found}")
        if finding.advice:
            echo(f"         {finding.advice}")
    echo(f"{failed} checks failed" if failed else "no check failed")
    return FAILED if failed else 0


@hookimpl
def register_commands(register: Callable[[Command], None]) -> None:
    """Register `xmcbench new` and `xmcbench check`."""
    register(Command("new", new))
    register(Command("check", check))
