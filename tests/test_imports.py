"""What may import what: `xmcbench --help` is quick, and the harness knows no method by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from test_storeys import named_rooms

import xmcbench
from xmcbench.data import load
from xmcbench.plugins.registry import FIRST_PARTY, plugin_package

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "ray", "sklearn", "faiss"}
LIGHT = (
    "cli",
    "suite.suite",
    "trial.trial",
    "trial.record",
    "evaluation",
    "api",
    "plugins.registry",
    "runs.runner",
    "runs.worker_server",
    "runs.worker",
    "data",
)
PUBLIC = {name for name in xmcbench.__all__ if name.islower()}


def modules_after(statement: str) -> set[str]:
    """All modules that are there after `statement` has run in a fresh interpreter."""
    command = [sys.executable, "-c", f"import sys; {statement}\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split())


def imported_by(statement: str) -> set[str]:
    """Top-level packages that are there after `statement` has run in a fresh interpreter."""
    return {name.partition(".")[0] for name in modules_after(statement)}


def test_the_light_modules_import_nothing_heavy() -> None:
    statement = "import " + ", ".join(f"xmcbench.{name}" for name in LIGHT)
    assert not imported_by(statement) & HEAVY


def test_help_imports_no_numpy_either() -> None:
    assert not imported_by("import xmcbench.cli") & (HEAVY | {"numpy", "scipy", "pydantic", "rich"})
    added = "from xmcbench.cli import add_commands_of_plugins; add_commands_of_plugins()"
    assert not imported_by(added) & (HEAVY | {"numpy", "scipy", "pydantic", "rich"})


HELP_TWICE = """
from contextlib import suppress
import typer.main
from xmcbench.cli import add_commands_of_plugins, app, main

read, known = set(), typer.main.get_params_from_function
typer.main.get_params_from_function = lambda function: read.update(found := known(function)) or found
with suppress(SystemExit):
    main(["--help"])
print("parameters:", *sorted(read))
add_commands_of_plugins()
app(["--help"])
"""


def test_the_help_of_all_commands_reads_no_parameters_and_is_that_of_the_whole_command_line() -> None:
    """To read the parameters takes Typer about as long as the rest of the help."""
    done = subprocess.run([sys.executable, "-c", HELP_TWICE], capture_output=True, text=True, check=True, cwd=ROOT)
    quick, read = done.stdout.split("parameters:")
    read, whole = read.split("\n", 1)
    assert "version" in read.split()
    assert not {"store", "seed"} & {*read.split()}
    assert "tune" in quick
    assert quick == whole


LISTINGS = {
    "methods": ["methods"],
    "datasets": ["datasets", "list"],
    "teachers": ["teachers", "list"],
    "a dry run": ["run", "suites/quickstart.yaml", "--dry-run", "--store", "nowhere"],
}


@pytest.mark.parametrize("arguments", LISTINGS.values(), ids=LISTINGS)
def test_listings_import_no_framework(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin declares its methods without torch: it imports frameworks in functions."""
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path))
    if "run" in arguments:
        load("shop-1k", tmp_path, tmp_path)  # the first run of a suite prepares its datasets, which takes scipy
    call = (
        "from contextlib import redirect_stdout, suppress; from io import StringIO; from xmcbench.cli import main\n"
        f"with redirect_stdout(StringIO()), suppress(SystemExit): main({arguments})\n"
    )
    found = modules_after(call)
    assert "xmcbench.plugins.registry" in found
    assert not found & (HEAVY | {"scipy.sparse", "tokenizers", "concurrent.futures", "filelock"})
    assert "run" in arguments or "yaml" not in found


@pytest.mark.parametrize("arguments", LISTINGS.values(), ids=LISTINGS)
def test_listings_load_no_numpy(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins import it, and use it in functions only."""
    monkeypatch.setenv("XMCBENCH_CACHE", str(tmp_path))
    if "run" in arguments:
        load("shop-1k", tmp_path, tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "xmcbench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "xmcbench" in loaded
    assert not loaded & {"numpy", "psutil", "scipy"}


LATE = "from xmcbench.files.late_modules import load_late; load_late(['methods']); "


@pytest.mark.parametrize(
    "use",
    [
        "import numpy as np; assert np.arange(3).sum() == 3",
        "from numpy import arange; assert arange(3).sum() == 3",
        "import numpy.random; assert numpy.random.default_rng(0).random() < 1",
        "from numpy.typing import NDArray; assert NDArray",
        "import numpy, psutil; assert psutil.Process().ppid(); assert numpy.ones(1)[0]",
        "import scipy; assert scipy.sparse.csr_array((2, 3)).shape == (2, 3)",
        "import scipy.sparse as sparse; assert sparse.eye_array(2).sum() == 2",
        "import torch; assert torch.ones(2).numpy().sum() == 2",
    ],
)
def test_a_late_module_is_the_whole_module_once_it_is_used(use: str) -> None:
    assert "numpy._core" not in modules_after(f"{LATE}import numpy, scipy")
    assert "numpy._core" in modules_after(LATE + use)


def test_only_listings_load_modules_late() -> None:
    late = "from xmcbench.files.late_modules import load_late; load_late(['run', 'suite.yaml']); import numpy"
    assert "numpy._core" in modules_after(late)


def test_a_command_starts_almost_without_garbage_collections() -> None:
    """What imports allocate stays; the default thresholds walk it about 150 times."""
    call = (
        "import gc, sys; from contextlib import redirect_stdout, suppress; from io import StringIO\n"
        "from xmcbench.__main__ import main\n"
        "sys.argv = ['xmcbench', 'methods']; before = gc.get_stats()\n"
        "with redirect_stdout(StringIO()), suppress(SystemExit): main()\n"
        "print(sum(now['collections'] - old['collections'] for now, old in zip(gc.get_stats(), before)))"
    )
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) <= 20


def test_a_method_that_is_named_after_its_plugin_imports_no_other_plugin() -> None:
    found = modules_after("from xmcbench.plugins.registry import registry; registry().method('tfidf-nn')")
    assert {plugin_package(name) for name in found if name.startswith(f"{FIRST_PARTY}.")} == {f"{FIRST_PARTY}.tfidf"}


def test_a_command_of_a_plugin_imports_no_other_plugin() -> None:
    found = modules_after("from xmcbench.cli import add_commands_of_plugins; add_commands_of_plugins('tune')")
    assert {plugin_package(name) for name in found if name.startswith(f"{FIRST_PARTY}.")} == {f"{FIRST_PARTY}.choosing"}


def test_every_public_name_of_methods_costs_no_framework() -> None:
    """What a declaration needs: base classes, settings, losses and samplers by name."""
    names = "DualEncoder, EmbeddingMethod, encoders, losses, sampling, search, tables, teachers"
    used = "encoders.EncoderConfig, tables.TableConfig, teachers.TeacherConfig, losses.TripletLoss"
    assert not imported_by(f"from xmcbench import {names}; {used}, sampling.ClusteredBatches") & HEAVY


PACKAGES = (
    "data",
    "evaluation",
    "files",
    "tracking",
    *(f"engine.{name}" for name in ("encoders", "losses", "sampling", "search", "tables")),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_submodule_hides_no_name_of_its_package(package: str) -> None:
    """A lazy package loses a name to a submodule of the same name, once somebody imports the submodule."""
    found = import_module(f"xmcbench.{package}")
    submodules = {module.name for module in iter_modules(found.__path__)}
    assert not submodules & set(found.__all__)
    assert all(getattr(found, name) is not None for name in found.__all__)


def test_published_figures_cost_no_numpy() -> None:
    read = "from xmcbench.reporting.published import published_rows; assert published_rows()"
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
    assert not imported_by(show) & (HEAVY | {"numpy", "scipy", "tokenizers", "rich"})


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


def method_files() -> list[Path]:
    """The files of the first-party plugins that are written as a third party's; rooms may import more of xmcbench."""
    folders = (folder for folder in (ROOT / "plugins" / FIRST_PARTY).iterdir() if folder.is_dir())
    return [path for folder in folders if folder.name not in named_rooms() for path in folder.rglob("*.py")]


def test_the_harness_imports_no_plugin() -> None:
    for path in (ROOT / "xmcbench").rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0].startswith("xmcbench_")}, path


def test_plugins_import_public_modules_only() -> None:
    for path in method_files():
        used = {name.split(".")[1:] and name.split(".")[1] for name in imports(path) if name.startswith("xmcbench.")}
        assert used <= PUBLIC, path
