"""The generated parts of the documentation's site are complete, and the picture of the data flow shows the packages."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from test_storeys import BELOW

from xmcbench.cli import app
from xmcbench.plugins.registry import Registry

pytest.importorskip("mkdocs", reason="needs the extra docs")

DOCS = Path(__file__).parents[1] / "docs"
PLUMBING = {"errors", "files", "plugins", "cli", "api"}  # not in the picture of the data flow


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None  # the file is there
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def commands(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
    """Every command that does something, with its long options."""
    if children := getattr(command, "commands", None):
        for name, child in children.items():
            yield from commands(child, f"{path} {name}")
    else:
        yield path, {option for p in command.params for option in p.opts if option.startswith("--")} - {"--help"}


def cells(markdown: str) -> list[list[str]]:
    """The cells of the rows of all tables that begin with code."""
    rows = [line for line in markdown.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_the_command_reference_has_every_option_with_a_meaning(generated: ModuleType) -> None:
    sections = dict(re.findall(r"^## `(.*?)`\n(.*?)(?=^## |\Z)", generated.commands(), flags=re.DOTALL | re.MULTILINE))
    listed = {name: set(re.findall(r"`(--[a-z0-9-]+)`", section)) for name, section in sections.items()}
    assert listed == dict(commands(typer.main.get_command(app), "xmcbench"))
    assert all(row[1] for section in sections.values() for row in cells(section))


def test_the_suite_reference_explains_every_key(generated: ModuleType) -> None:
    rows = cells(generated.suite())
    assert len(rows) > 40
    assert not [row[0] for row in rows if not row[2]]


def test_every_page_has_the_parts_that_it_marks(generated: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    marks = {(mark[1], mark[2]) for page in pages for mark in generated.MARK.finditer(page)}
    assert {kind for kind, _ in marks} == set(generated.MARKED)
    for kind, name in marks:
        rows = cells(generated.MARKED[kind](*filter(None, [name])))
        assert rows, (kind, name)
        assert not [(kind, name, row[0]) for row in rows if not row[-2]]


WRITTEN = ("methods", "teachers", "datasets", "api", "api-encoders", "api-losses", "api-data")


@pytest.mark.parametrize("name", [f"reference/{page}.md" for page in WRITTEN])
def test_the_pages_in_the_repository_are_those_of_the_code(generated: ModuleType, name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generated.HEADER + generated.WRITTEN[name](), (
        "python docs/generated.py writes it"
    )


def built_in(kind: str) -> list[str]:
    return [each.name for each in Registry().all(kind) if each.origin.distribution == "xmcbench"]


def test_every_built_in_method_is_described_and_every_setting_has_a_meaning(generated: ModuleType) -> None:
    described = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("methods.md", "outside.md"))
    assert not [name for name in built_in("method") if f"`{name}`" not in described]
    assert not [row[0] for row in cells(generated.methods_page()) if not row[-2]]


def test_every_teacher_has_its_settings_on_the_page_of_teachers(generated: ModuleType) -> None:
    sections = {each.partition("\n")[0]: each for each in generated.teachers_page().split("\n## ")[1:]}
    assert set(sections) == set(built_in("teacher"))
    for name, section in sections.items():
        fields = Registry().thing("teacher", name).Config.model_fields
        assert [row[0] for row in cells(section)] == [f"`{field}`" for field in fields if field != "name"]
        assert all(row[-2] for row in cells(section))


def test_the_picture_of_the_data_flow_names_the_packages() -> None:
    drawn = (DOCS / "pictures/data-flow.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'class="package"[^>]*>(\w+)<', drawn)) == set(BELOW) - PLUMBING
