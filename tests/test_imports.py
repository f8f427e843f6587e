"""What may import what: `xmcbench --help` is quick, and the harness knows no method by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import xmcbench

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "ray", "sklearn", "faiss"}
LIGHT = (
    "cli",
    "suite.suite",
    "trial.trial",
    "trial.record",
    "evaluation",
    "reporting",
    "plugins.registry",
    "run.runner",
    "run.worker_server",
    "run.worker",
    "data",
)
PUBLIC = {name for name in xmcbench.__all__ if name.islower()}


def imported_by(statement: str) -> set[str]:
    """Top-level packages that are there after `statement` has run in a fresh interpreter."""
    program = f"import sys; {statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    command = [sys.executable, "-c", program]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split())


def test_the_light_modules_import_nothing_heavy() -> None:
    statement = "import " + ", ".join(f"xmcbench.{name}" for name in LIGHT)
    assert not imported_by(statement) & HEAVY


def test_help_imports_no_numpy_either() -> None:
    assert not imported_by("import xmcbench.cli") & (HEAVY | {"numpy", "scipy", "pydantic", "rich"})


@pytest.mark.parametrize(
    "call",
    [
        "from xmcbench.cli import main; main(['datasets', 'list'])",
        "from xmcbench.cli import main; main(['teachers', 'list'])",
        "from xmcbench.plugins.registry import registry; registry().method('popular', 'xmcbench')",
        "from xmcbench.plugins.registry import registry; registry().method('external')",
    ],
)
def test_listings_and_light_methods_import_no_framework(call: str) -> None:
    silent = "from contextlib import redirect_stdout, suppress; from io import StringIO\n"
    assert not imported_by(f"{silent}with redirect_stdout(StringIO()), suppress(SystemExit): {call}\n") & HEAVY


def test_listing_methods_imports_no_framework_but_torch() -> None:
    """A plugin imports frameworks in functions, and names them in `late_imports`."""
    show = (
        "from contextlib import redirect_stdout; from io import StringIO; from xmcbench.cli.methods import methods\n"
        "with redirect_stdout(StringIO()): methods()\n"
    )
    program = f"{show}import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(loaded.stdout.split()) & (HEAVY - {"torch"})


def test_published_figures_cost_no_numpy() -> None:
    read = "from xmcbench.reporting import published_rows; assert published_rows()"
    assert not imported_by(read) & (HEAVY | {"numpy", "scipy"})


def test_a_leaderboard_of_papers_costs_no_numpy() -> None:
    """It is what is run first, on a machine where nothing was trained."""
    show = (
        "from contextlib import redirect_stdout; from io import StringIO; from pathlib import Path; "
        "from xmcbench.cli.leaderboard import leaderboard\n"
        "with redirect_stdout(StringIO()) as shown: "
        "leaderboard(dataset='lf-amazontitles-1.3m', source='published', store=Path('nowhere'))\n"
        "assert '59.62' in shown.getvalue()\n"
    )
    program = f"{show}import sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(run.stdout.split()) & (HEAVY | {"numpy", "scipy", "tokenizers", "rich"})


def test_every_public_name_is_there() -> None:
    for name in xmcbench.__all__:
        assert getattr(xmcbench, name) is not None
    with pytest.raises(AttributeError):
        xmcbench.nothing  # noqa: B018


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_harness_imports_no_plugin() -> None:
    for path in (ROOT / "xmcbench").rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0].startswith("xmcbench_")}, path


def test_plugins_import_public_modules_only() -> None:
    for path in (ROOT / "plugins").rglob("*.py"):
        used = {name.split(".")[1:] and name.split(".")[1] for name in imports(path) if name.startswith("xmcbench.")}
        assert used <= PUBLIC, path
