"""Generates parts of the site from the code, its formulas, and the leaderboard's page in `board/`.

mkdocs calls the functions whose names begin with `on_`.

A page marks a generated part with a line `<!-- generated: KIND -->` or `<!-- generated: KIND NAME -->`.

    python docs/generated.py    # writes the pages of `WRITTEN` into the repository, to be read without a site
"""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import typer
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).parents[1]
HEADER = "<!-- Written by docs/generated.py. -->\n"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
BOARD = "board"  # the folder of the site that has the leaderboard's page
# What plugins and notebooks use, by the pages and sections on it: names in `xmcbench`.
API = {
    "api": {
        "Running and looking": "run leaderboard compare predict show load score api.Board api.Scored api.Picture",
        "Methods": "Method MethodInfo Run trial.run.TrainingLog Progress Budget Ledger PassTooLargeError Predictions",
        "Registry and errors": "hookimpl register registry import_extra XMCBenchError",
    },
    "api-encoders": {
        "Dual encoders": "DualEncoder EmbeddingMethod upload",
        "Encoders": "encoders",
        "Search": "search",
    },
    "api-losses": {
        "Losses": "losses",
        "Samplers": "sampling",
        "Label tables": "tables",
    },
    "api-data": {
        "Data": "data",
        "Evaluation": "evaluation",
        "Teachers": "teachers",
        "Trackers": "tracking",
        "Outside programs": "programs",
        "Files": "files",
    },
}
API_TITLES = {
    "api": "Python API",
    "api-encoders": "Python API: dual encoders",
    "api-losses": "Python API: losses, samplers, label tables",
    "api-data": "Python API: data, evaluation and other plugins",
}
API_NAMES = {name for sections in API.values() for names in sections.values() for name in names.split()}
BASES = {"DualEncoder", "EmbeddingMethod"}  # classes that are shown with what they inherit
DIRECTIVE = re.compile(r"^<!-- (::: .*?) -->$", flags=re.MULTILINE | re.DOTALL)  # of mkdocstrings
MARK = re.compile(r"^<!-- generated: (\S+)(?: (\S+))? -->$", flags=re.MULTILINE)
# Pages of the site that are files elsewhere in the repository, and how links to them change.
ELSEWHERE = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}
ELSEWHERE |= {f"plugins/{path.parent.name}.md": path for path in sorted(ROOT.glob("plugins/*/*/README.md"))}
LINKS = (
    (r"\]\(\.\./plugins/xmcbench_plugins/(\w+)/README\.md", r"](plugins/\1.md"),
    (r"\]\((?:\.\./)?(CONTRIBUTING|CHANGELOG)\.md", lambda link: f"]({link[1].lower()}.md"),
    (r"\]\(\.\./(\w+)/README\.md", r"](\1.md"),
    (r"\]\(\.\./\.\./\.\./docs/", "](../"),
    (r"\]\(docs/", "]("),
    (r"\]\(README\.md", "](index.md"),
    (r"\]\(leaderboard\.md#the-page\)", f"]({BOARD}/index.html)"),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let the theme draw fenced blocks of Mermaid."""
    fences = [{"name": "mermaid", "class": "mermaid", "format": fence_code_format}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with the leaderboard's page and the pages that are kept elsewhere in the repository."""
    for uri, content in board().items():
        files.append(File.generated(config, uri, content=content))
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, content=path.read_text(encoding="utf-8")))
    return files


@cache
def board() -> dict[str, bytes]:
    """The files of the leaderboard's page, of published and accepted results, by their place in the site."""
    with TemporaryDirectory() as name:
        folder, nothing = Path(name) / BOARD, str(Path(name) / "nothing")
        places = ["--output", str(folder), "--store", nothing, "--data", nothing]
        command = [sys.executable, "-m", "xmcbench", "leaderboard", "--format", "html", *places]
        subprocess.run(command, check=True, capture_output=True)
        return {path.relative_to(name).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with its generated parts, and with links that lead to pages of the site."""
    for link, page in LINKS:
        markdown = re.sub(link, page, markdown)
    markdown = DIRECTIVE.sub(r"\1", markdown)
    return MARK.sub(lambda mark: MARKED[mark[1]](*filter(None, [mark[2]])), markdown)


def on_page_content(content: str, **_: object) -> str:
    """The page with its formulas as MathML, which browsers draw themselves."""
    kinds = {"div": "block", "span": "inline"}
    return FORMULA.sub(lambda found: convert(html.unescape(found[2]), display=kinds[found[1]]), content)


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [headings, ("---",) * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# Commands -----------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options, as `--help` shows them."""
    from xmcbench.cli import add_commands_of_plugins, app

    add_commands_of_plugins()
    return "\n".join(_command(path, function) for path, function in _walk(app, "xmcbench"))


def _walk(app: typer.Typer, path: str) -> Iterator[tuple[str, Callable[..., None]]]:
    for command in app.registered_commands:
        function = cast("Callable[..., None]", command.callback)
        yield f"{path} {command.name or function.__name__}", function
    for group in app.registered_groups:
        yield from _walk(cast("typer.Typer", group.typer_instance), f"{path} {group.name}")


def _command(path: str, function: Callable[..., None]) -> str:
    rows = [
        _parameter(name, parameter.default, *get_args(parameter.annotation))
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if get_origin(parameter.annotation) is Annotated
    ]
    text = f"## `{path}`\n\n{inspect.cleandoc(function.__doc__ or '')}\n\n"
    return text + (table(("argument or option", "meaning", "default"), rows) if rows else "It has no options.\n")


def _parameter(name: str, default: Any, kind: Any, info: Any) -> tuple[str, str, str]:
    meaning = info.help or ""
    several = get_origin(kind) is list or list in map(get_origin, get_args(kind))
    if several and "several times" not in meaning:
        meaning += " May be given several times."
    if info.envvar:
        meaning += f" Environment variable: `{info.envvar}`."
    shown = info.show_default if isinstance(info.show_default, str) else _default(default)
    return _usage(name, kind, info), meaning, shown


def _usage(name: str, kind: Any, info: Any) -> str:
    """How an argument or option is written, with its choices or a word for its value."""
    if isinstance(info, typer.models.ArgumentInfo):
        return f"`{info.metavar or name.upper()}`"
    given = [option for option in (info.default, *(info.param_decls or ())) if str(option).startswith("-")]
    names = ", ".join(f"`{option}`" for option in given or ["--" + name.replace("_", "-")])
    if kind is bool:
        return names
    plain = next((part for part in get_args(kind) if part is not type(None)), kind) if _optional(kind) else kind
    if get_origin(plain) is Literal:
        return f"{names} {_choices(get_args(plain))}"
    if isinstance(plain, type) and issubclass(plain, Enum):
        return f"{names} {_choices(choice.value for choice in plain)}"
    return f"{names} `{info.metavar or {int: 'N', float: 'X', Path: 'PATH'}.get(plain, 'TEXT')}`"


def _choices(values: Iterable[str]) -> str:
    return "(" + ", ".join(f"`{value}`" for value in values) + ")"


def _optional(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or get_origin(kind) is Union


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return "" if value is None or value is False else f"`{getattr(value, 'value', value)}`"


# Settings -----------------------------------------------------------------------------------------------------------


def suite() -> str:
    """The keys of a suite file, and those of the mappings in it."""
    from xmcbench.suite.resources import Resources
    from xmcbench.suite.schema import SuiteFile
    from xmcbench.suite.tables import TableShape
    from xmcbench.suite.tuning import Range, Tune
    from xmcbench.trial.budget import Budget
    from xmcbench.trial.trial import Selection

    parts = {
        "Top level": SuiteFile,
        "`budget`, and each entry of `budgets`": Budget,
        "`selection`": Selection,
        "`tune`": Tune,
        "A range in `tune.space`": Range,
        "Each entry of `tables`": TableShape,
        "`resources`": Resources,
    }
    return "\n".join(f"## {title}\n\n{settings(config)}" for title, config in parts.items())


def columns() -> str:
    """The columns that leaderboards and tables can show."""
    from xmcbench.suite.tables import COLUMNS

    return table(("column", "meaning"), ((f"`{column.name}`", column.help) for column in COLUMNS.values()))


def method(name: str) -> str:
    """The settings of a built-in method that it does not share with other dual encoders."""
    from xmcbench import DualEncoder, EmbeddingMethod
    from xmcbench.plugins.registry import registry

    kind = registry().method(name).thing
    shared = next((base.Config for base in (EmbeddingMethod, DualEncoder) if issubclass(kind, base)), BaseModel)
    own = {
        name: field
        for name, field in kind.Config.model_fields.items()
        if name not in shared.model_fields or field.default != shared.model_fields[name].default
    }
    return settings(own) if own else "It has no settings of its own.\n"


def published(part: str) -> str:
    """Keys of a file of published results: of the file, of a table, of a row, or the facts that may stand anywhere."""
    from xmcbench.reporting.paper_rows import RowFacts
    from xmcbench_plugins.board.papers import PublishedFile, PublishedTable, TableRow

    if part == "facts":
        return settings(RowFacts)
    config = {"file": PublishedFile, "table": PublishedTable, "row": TableRow}[part]
    return settings({n: f for n, f in config.model_fields.items() if n not in RowFacts.model_fields})


def settings(config: type[BaseModel] | dict[str, FieldInfo]) -> str:
    """A table of settings: name, type or choices, meaning, default."""
    fields = config if isinstance(config, dict) else config.model_fields
    rows = ((f"`{name}`", _type(f.annotation), f.description or "", _value(f)) for name, f in fields.items())
    return table(("setting", "type", "meaning", "default"), rows)


def _type(annotation: Any) -> str:
    """A type as a reader of YAML would say it."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if isinstance(annotation, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    words = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", type(None): "null"}
    words |= {list: "list", tuple: "list", dict: "mapping"}
    return words.get(get_origin(annotation) or annotation, "any")


def _value(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = getattr(value, "name", None) or value.model_dump(exclude_defaults=True, exclude_none=True)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "`true`", False: "`false`"}[value]
    if isinstance(value, tuple | list):
        return "`[" + ", ".join(map(str, value)) + "]`"
    return f"`{value}`" if value != "" else '`""`'


MARKED: dict[str, Callable[..., str]] = {
    "commands": commands,
    "suite": suite,
    "columns": columns,
    "published": published,
}


# Pages in the repository ----------------------------------------------------------------------------------------------


def methods_page() -> str:
    """Every built-in method: what it is, what it needs, and its settings; then settings that many methods have."""
    from xmcbench import DualEncoder, EmbeddingMethod, encoders, tables
    from xmcbench.plugins.registry import registry

    built_in = [each for each in registry().all("method") if each.origin.distribution == "xmcbench"]
    inherited = DualEncoder.Config.model_fields
    shared = {
        "Settings of every trained dual encoder": {
            name: field for name, field in EmbeddingMethod.Config.model_fields.items() if name not in inherited
        },
        "Settings of every dual encoder": inherited,
        "The encoder": encoders.EncoderConfig,
        "A label table": tables.TableConfig,
    }
    parts = [
        "# Settings of the methods\n",
        "Defaults are those of the code; [built-in methods](../methods.md) says what they do.\n",
    ]
    own_tables = {each.name: method(each.name) for each in built_in}
    counts = Counter(line for text in own_tables.values() for line in text.splitlines() if line.startswith("| `"))
    several = {line.split("|")[1]: line for line, count in reversed(counts.most_common()) if count > 1}
    for each in built_in:
        info = each.thing.info
        needs = f" It needs {', '.join(info.needs)}." if info.needs else ""
        own = [line for line in own_tables[each.name].splitlines() if line not in several.values()]
        others = [name.strip() for name, line in several.items() if line in own_tables[each.name].splitlines()]
        parts += [f"## {each.name}\n", f"{info.summary[:1].upper()}{info.summary[1:]}.{needs}\n"]
        if any(line.startswith("| `") for line in own) or not others:
            parts.append("\n".join(own) + "\n")
        if others:
            parts.append(f"As [several methods](#settings-of-several-methods): {', '.join(others)}.\n")
    parts += [
        "## Settings of several methods\n",
        settings({}) + "\n".join(several[name] for name in sorted(several)) + "\n",
    ]
    for title, config in shared.items():
        parts += [f"## {title}\n", settings(config)]
    return "\n".join(parts)


def teachers_page() -> str:
    """Every built-in teacher: what it is, and its settings."""
    from xmcbench.plugins.registry import registry

    parts = [
        "# Settings of the teachers\n",
        "Keys of `teacher: {name: ...}` of a method. [Teachers](../teachers.md) says how they judge and what they\n"
        "cost.\n",
    ]
    for each in registry().all("teacher"):
        if each.origin.distribution == "xmcbench":
            summary, fields = each.thing.summary, each.thing.Config.model_fields
            own = settings({name: field for name, field in fields.items() if name != "name"})
            parts += [f"## {each.name}\n", f"{summary[:1].upper()}{summary[1:]}.\n", own]
    return "\n".join(parts)


def datasets_page() -> str:
    """The cards of all datasets with results, as on the leaderboard's page."""
    import xmcbench as xb
    from xmcbench_plugins.board.page import cards

    with TemporaryDirectory() as empty:
        board = xb.leaderboard(whole=True, store=Path(empty), data=Path(empty)).table
    parts = [
        "# Datasets with results\n",
        "[Datasheets](../datasheets.md) say more of those that can be imported here.\n",
    ]
    for card in cards(board):
        parts += [f"## {card.name}\n", table(("fact", "value"), card.rows)]
    return "\n".join(parts)


def api_page(page: str) -> str:
    """Every public name of a page with its signature and the first sentence about it; the site adds the rest."""
    others = [f"[{title}]({name}.md)" for name, title in API_TITLES.items() if name != page]
    parts = [
        f"# {API_TITLES[page]}\n",
        "Everything that a plugin may import: `from xmcbench import NAME`, or `import xmcbench as xb`. `Tensor` is\n"
        "torch's, `np` is numpy. Letters in brackets, and at the end of an argument's name, are shapes: N texts or\n"
        "pairs, L labels, K or k ranked labels, B queries of a batch, S labels of its pool, P true pairs, D numbers\n"
        "of a vector.\n"
        "`EmbeddingMethod` has also what `DualEncoder` has, and that what `Method` has.\n",
        f"More names: {', '.join(others)}.\n",
    ]
    for title, names in API[page].items():
        rows = [row for name in names.split() for row in _entries(name)]
        parts += [f"## {title}\n", table(("name", "is"), rows)]
        parts += [f"<!-- ::: xmcbench.{name}{INHERITED * (name in BASES)} -->\n" for name in names.split()]
    return "\n".join(parts)


def _entries(name: str) -> Iterator[tuple[str, str]]:
    """The rows of a name: a module's members, or the name and a class's methods, but for those of a listed base."""
    import xmcbench

    thing = attrgetter(name)(xmcbench)
    if isinstance(thing, types.ModuleType):
        for member in sorted(thing.__all__):
            yield _entry(f"{name}.{member}", getattr(thing, member))
        return
    yield _entry(name, thing)
    if isinstance(thing, type):
        listed = [each for each in thing.__mro__[1:] if each.__name__ in API_NAMES]  # bases with rows of their own
        classes = (
            [each for each in thing.__mro__ if each.__module__.startswith("xmcbench")] if name in BASES else [thing]
        )
        classes = [each for each in classes if not any(issubclass(base, each) for base in listed)]
        for member in dict.fromkeys(member for each in reversed(classes) for member in vars(each)):
            own = inspect.getattr_static(thing, member)
            if not member.startswith("_") and isinstance(own, types.FunctionType | property | classmethod):
                found = _entry(f"{name}.{member}", getattr(own, "__func__", own))
                if found[1]:
                    yield found


def _entry(name: str, thing: Any) -> tuple[str, str]:
    takes = _signature(thing) if isinstance(thing, types.FunctionType) else ""
    return f"`{name}{takes}`", (inspect.getdoc(thing) or "").partition("\n")[0]


def _signature(function: types.FunctionType) -> str:
    """Arguments with their types, defaults, and what is returned: `(queries_BD: Tensor, k: int = 5) -> Tensor`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    text = str(signature.replace(parameters=own)) if own else f"() -> {signature.return_annotation}"
    text = re.sub(r"= <.*? at 0x[0-9a-f]+>", "= ...", text)  # a default that is a function
    # Annotations are text where a module postpones them.
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).removesuffix(" -> None")


INHERITED = "\n    options: {inherited_members: true}"
WRITTEN = {
    "reference/methods.md": methods_page,
    "reference/teachers.md": teachers_page,
    "reference/datasets.md": datasets_page,
} | {f"reference/{name}.md": partial(api_page, name) for name in API}


if __name__ == "__main__":
    for name, page in WRITTEN.items():
        (Path(__file__).parent / name).write_text(HEADER + page(), encoding="utf-8")
        print(f"docs/{name}")
