"""The storeys of the house: which package may import which. Arrows point down, and no modules import each other in a
circle, wherever in a file the import stands."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "xmcbench"

# Each package with those that it may import, in order: a package imports only what stands before it.
FOUNDATION = {"errors", "files", "plugins"}
BELOW = {
    "errors": set(),
    "files": {"errors"},
    "plugins": {"errors", "files"},
    "data": FOUNDATION,
    "trial": FOUNDATION | {"data"},
    "teachers": FOUNDATION | {"data", "trial"},
    "tracking": FOUNDATION | {"data", "trial"},
    "evaluation": FOUNDATION | {"data", "trial"},
    "suite": FOUNDATION | {"data", "trial", "evaluation"},
    "engine": FOUNDATION | {"data", "trial", "evaluation", "teachers"},
    "reporting": FOUNDATION | {"data", "trial", "evaluation", "suite"},
    "runs": FOUNDATION | {"data", "trial", "evaluation", "teachers", "tracking", "suite", "engine"},
}
BELOW["api"] = {*BELOW}
BELOW["cli"] = {*BELOW}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, but the one that starts the command line."""
    return {dotted(path): path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py"}


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports: at its top, inside functions, and under `TYPE_CHECKING`."""
    found, known = set(), modules()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in full}
    return found & known.keys()


@cache
def graph() -> dict[str, set[str]]:
    """For each module those that it imports; `xmcbench` itself, which exports lazily, is left out."""
    found = {name: imports(path) for name, path in modules().items()}
    return {name: others - {name, "xmcbench"} for name, others in found.items() if name != "xmcbench"}


def storey(module: str) -> str:
    return module.split(".")[1]


def test_no_module_imports_the_top_of_the_package() -> None:
    assert not [name for name, path in modules().items() if "xmcbench" in imports(path)]


def test_every_arrow_points_down() -> None:
    upward = [
        f"{module} -> {other}"
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if storey(other) not in BELOW[storey(module)] | {storey(module)}
    ]
    assert not upward


def test_no_circle() -> None:
    """A package's `__init__` gathers its modules; what it imports counts as imported by those who import it."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as problem:
        raise AssertionError(" -> ".join(problem.args[1])) from None


def test_the_top_of_the_package_is_what_one_can_remember() -> None:
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "__main__.py"}
    assert len(entries) <= 17
    assert entries - {"__init__.py", "__init__.pyi", "py.typed"} == {
        name if (PACKAGE / name).is_dir() else f"{name}.py" for name in BELOW
    }


def test_each_storey_says_what_it_is_for() -> None:
    for name in BELOW:
        if (PACKAGE / name).is_dir():
            said = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8")))
            assert said, f"xmcbench/{name}/__init__.py says nothing"


def lower_storeys(arrows: set[tuple[str, str]], start: str) -> set[str]:
    """Every package that can be reached from `start` along the arrows."""
    direct = {lower for upper, lower in arrows if upper == start}
    return direct.union(*(lower_storeys(arrows, lower) for lower in direct))


def test_the_picture_in_the_documentation_shows_the_packages() -> None:
    """Its arrows are those of the imports, without those that follow from others."""
    arrows = {(storey(module), storey(other)) for module, others in graph().items() for other in others}
    arrows = {(upper, lower) for upper, lower in arrows if upper != lower}
    direct = {
        (upper, lower)
        for upper, lower in arrows
        if not any(lower in lower_storeys(arrows, other) for up, other in arrows if up == upper and other != lower)
    }
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.partition("```mermaid")[2].partition("```")[0]
    shown = {tuple(line.split(" --> ")) for line in map(str.strip, drawn.splitlines()) if " --> " in line}
    assert shown == direct


# Rooms ------------------------------------------------------------------------------------------------------------

PLUGINS = PACKAGE.parent / "plugins" / "xmcbench_plugins"


def named_rooms() -> dict[str, set[str]]:
    """The rooms of the architecture's table, with the modules of the harness that they may import."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Rooms")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): set(re.findall(r"`([\w.*]+)`", row[3])) for row in rows}


@cache
def room_imports(room: str) -> tuple[set[str], set[str]]:
    """The modules of the harness, and those of other plugins, that a room imports."""
    own, imported = f"xmcbench_plugins.{room}", set()
    files = [*PLUGINS.rglob("*.py")]
    known = {*modules(), *(".".join(path.relative_to(PLUGINS.parent).with_suffix("").parts) for path in files)}
    for path in (PLUGINS / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {name if name in known else node.module for name in full}
    harness = {name.removeprefix("xmcbench.") for name in imported if name.startswith("xmcbench.")}
    plugins = {name for name in imported if name.startswith("xmcbench_plugins.")}
    return harness, {name for name in plugins if not f"{name}.".startswith(f"{own}.")}


MANY = 4  # modules of one storey, from which on the table names the storey


def border(harness: set[str]) -> set[str]:
    """Modules of the harness as the architecture's table names them: `trial.*` for many modules of a storey."""
    several = {of for of, count in Counter(name.split(".")[0] for name in harness).items() if count >= MANY}
    return {f"{of}.*" if (of := name.split(".")[0]) in several else name for name in harness}


def test_a_room_imports_the_modules_that_the_architecture_names() -> None:
    for room, named in named_rooms().items():
        harness, others = room_imports(room)
        expected = border(harness) | others
        line = " ".join(f"`{name}`" for name in sorted(expected))
        assert named == expected, f"the row of {room} in docs/architecture.md: expected the imports {line}"


def test_rooms_build_on_one_another_without_a_circle() -> None:
    """A method imports no room, so that its digest covers no other plugin by accident."""
    rooms = named_rooms().keys()
    graph = {room: {name.split(".")[1] for name in room_imports(room)[1]} for room in rooms}
    TopologicalSorter(graph).prepare()
    assert {room for others in graph.values() for room in others} <= rooms
    methods = {path.parent.name for path in PLUGINS.glob("*/__init__.py")} - rooms
    inside = {name: {other.split(".")[1] for other in room_imports(name)[1]} & rooms for name in methods}
    assert not {name: others for name, others in inside.items() if others}


def test_every_plugin_says_what_it_is_for() -> None:
    for folder in PLUGINS.iterdir():
        if (folder / "__init__.py").exists():
            assert (folder / "README.md").exists(), f"{folder.name} has no README.md"
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder.name
