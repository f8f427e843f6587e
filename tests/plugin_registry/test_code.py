"""The identity of code: what leaves a digest alone, and what changes it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from re import match

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.plugins import code
from xmcbench.plugins.code import code_of, code_of_source

PLUGIN = '''"""A method."""
from __future__ import annotations
from typing import TYPE_CHECKING
from trust_helper import scale
from .losses import loss
if TYPE_CHECKING:
    from torch import Tensor
RATE = 0.1

def fit(x, *, seed=None, y=1):
    """Fit."""
    return loss(x) * RATE * scale  # a comment
'''
LOSSES = "def loss(x):\n    return x + 1\n"
HELPER = "from trust_deeper import scale\n"
DEEPER = "scale = 2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.startswith("trust_")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    code._code_at.cache_clear()
    code._home.cache_clear()
    code_of_source.cache_clear()


def digest(folder: Path, name: str = "trust_plugin", **files: str) -> str:
    """The digest of a package that a new process would find."""
    for path in folder.rglob("trust_*.py"):
        path.unlink()
    package = folder / name
    package.mkdir(exist_ok=True)
    contents = {"__init__": PLUGIN, "losses": LOSSES} | {own: text for own, text in files.items() if own[0] != "_"}
    for own, text in contents.items():
        path = folder / f"trust_{own}.py" if own in ("helper", "deeper") else package / f"{own}.py"
        path.write_text(files.get("__init__", text) if own == "__init__" else text)
    (folder / "trust_helper.py").write_text(contents.get("helper", HELPER))
    (folder / "trust_deeper.py").write_text(contents.get("deeper", DEEPER))
    _forget()
    spec = spec_from_file_location(name, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec
    sys.modules[name] = module_from_spec(spec)  # not run: its imports are read
    return code_of((name,)).digest


def test_comments_formatting_docstrings_and_types_leave_it_alone(folder: Path) -> None:
    first = digest(folder)
    other = PLUGIN.replace("# a comment", "# another").replace('"""Fit."""\n', "'''Fit\n    it.'''\n    pass\n")
    other = other.replace("RATE = 0.1", "RATE = 0.10  ;").replace("    from torch import Tensor", "    import torch")
    assert digest(folder, __init__=other.replace("loss(x) * RATE", "(loss(x)\n            * RATE)")) == first


@pytest.mark.parametrize(
    ("old", "new"), [("0.1", "0.2"), ("0.1", "'0.1'"), ("RATE *", "RATE +"), ("y=1", "y=True"), ("x, *", "x, /, *")]
)
def test_a_change_of_what_is_computed_changes_it(folder: Path, old: str, new: str) -> None:
    assert digest(folder) != digest(folder, __init__=PLUGIN.replace(old, new, 1))


def test_which_argument_has_the_default_is_told(folder: Path) -> None:
    other = PLUGIN.replace("seed=None, y=1", "seed=1, y=None")
    required = PLUGIN.replace("seed=None, y=1", "seed, y=1"), PLUGIN.replace("seed=None, y=1", "seed=1, y")
    assert len({digest(folder, __init__=text) for text in (PLUGIN, other, *required)}) == 4


def test_files_that_move_with_their_imports_leave_it_alone(folder: Path) -> None:
    first = digest(folder)
    (folder / "trust_plugin" / "losses.py").unlink()
    (folder / "trust_plugin" / "parts").mkdir()
    (folder / "trust_plugin" / "parts" / "__init__.py").write_text("")
    (folder / "trust_plugin" / "parts" / "objective.py").write_text(LOSSES)
    moved = PLUGIN.replace(".losses", ".parts.objective").replace("trust_helper", "trust_other")
    (folder / "trust_plugin" / "__init__.py").write_text(moved)
    (folder / "trust_helper.py").rename(folder / "trust_other.py")
    (folder / "trust_plugin").rename(folder / "trust_renamed")
    _forget()
    sys.modules["trust_renamed"] = type(sys)("trust_renamed")
    sys.modules["trust_renamed"].__file__ = None
    sys.modules["trust_renamed"].__path__ = [str(folder / "trust_renamed")]  # type: ignore[attr-defined]
    assert code_of(("trust_renamed",)).digest == first


def test_another_module_of_the_same_names_changes_it(folder: Path) -> None:
    """Both modules are in either program: what tells them apart is which of them is imported."""
    both = {"losses": LOSSES, "others": LOSSES.replace("1", "2")}
    first = digest(folder, **both)
    assert digest(folder, **both, __init__=PLUGIN.replace(".losses", ".others")) != first


def test_modules_outside_of_the_package_are_in_it_however_they_are_reached(folder: Path) -> None:
    first = digest(folder)
    assert digest(folder, helper=HELPER + "x = 1\n") != first
    assert digest(folder, deeper="scale = 3\n") != first
    for text in ("def f():\n    import trust_deeper\n", "from importlib import *\nimport_module('trust_deeper')\n"):
        alone = {"__init__": text, "losses": ""}
        assert digest(folder, **alone) != digest(folder, **alone, deeper="scale = 3\n"), text


def test_files_beside_modules_are_in_it(folder: Path) -> None:
    first = digest(folder)
    prompt = folder / "trust_plugin" / "prompt.txt"
    prompt.write_text("Is this right?")
    second = digest(folder)
    prompt.write_text("Is this wrong?")
    assert len({first, second, digest(folder)}) == 3
    (folder / "trust_plugin" / "README.md").write_text("words")
    third = digest(folder)
    (folder / "trust_plugin" / "README.md").write_text("other words")
    assert digest(folder) == third


def test_files_in_folders_of_data_are_in_it_and_what_tools_leave_there_is_not(folder: Path) -> None:
    first = digest(folder)
    data = folder / "trust_plugin" / "prompts"
    data.mkdir()
    (data / "system.md").write_text("Is this right?")
    second = digest(folder)
    (data / "system.md").write_text("Is this wrong?")
    third = digest(folder)
    assert len({first, second, third}) == 3
    for left in ("__pycache__", ".cache"):
        (data / left).mkdir()
        (data / left / "kernel.nbc").write_text("machine code")
    assert digest(folder) == third


@pytest.mark.parametrize(
    "reads", ["Path(__file__).with_name('trust_words.txt')", "Path(__file__).parent / 'trust_data' / 'trust_words.txt'"]
)
def test_a_file_that_a_module_names_is_in_it(folder: Path, reads: str) -> None:
    """Whether it lies beside a module that is no package, or below it."""
    place = folder / "trust_data" / "trust_words.txt" if "trust_data" in reads else folder / "trust_words.txt"
    place.parent.mkdir(exist_ok=True)
    found = set()
    for words in ("these", "others"):
        place.write_text(words)
        found.add(digest(folder, helper=f"from pathlib import Path\nscale = len(({reads}).read_text())\n"))
    assert len(found) == 2


def test_texts_that_name_no_file_are_texts(folder: Path) -> None:
    texts = ["x" * 300, "é" * 200, "\\0", "/etc/hostname", "..", ".", "", "losses.py"]
    assert digest(folder, losses=f"NAMES = {texts}\n")


def test_docstrings_that_a_module_reads_are_in_it(folder: Path) -> None:
    texts = [f'def ask():\n    """{words}"""\n\nPROMPT = ask.__doc__\n' for words in ("Right?", "Wrong?")]
    assert len({digest(folder, losses=text) for text in texts}) == 2


def test_a_large_file_of_the_same_size_with_other_values_is_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "LARGEST_FILE", 1 << 10)
    digest(folder)
    found = set()
    for value in (b"a", b"b"):
        (folder / "trust_plugin" / "weights.bin").write_bytes(b"header" + value * (1 << 20))
        found.add(digest(folder))
    assert len(found) == 2


@pytest.mark.parametrize("owner", ["trust-own", None])
def test_another_module_of_the_own_distribution_or_of_none_is_read_where_it_is_installed(
    folder: Path, owner: str | None
) -> None:
    site = folder / "site-packages"
    info = site / "trust_own-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trust-own\nVersion: 1\n")
    (info / "RECORD").write_text("trust_plugin/__init__.py,,\n" + ("trust_deeper.py,,\n" if owner else ""))
    sys.path.insert(0, str(site))
    code._distribution.cache_clear()
    texts = "scale = 2\n", "scale = 2  # a comment\n", "scale = 3\n"
    found = [digest(site, __init__="import trust_deeper\n", losses="", deeper=text) for text in texts]
    sys.path.remove(str(site))
    assert found[0] == found[1] != found[2]


def test_a_file_that_is_no_python_is_in_it_as_it_is(folder: Path) -> None:
    assert digest(folder, losses="print 'x'\n") != digest(folder, losses="print 'y'\n")


@pytest.mark.parametrize(("version", "same"), [("1.0+local", True), ("1.1", False), ("1.0 at 0123abc", False)], ids=str)
def test_other_distributions_are_known_by_name_and_version(folder: Path, version: str, same: bool) -> None:
    def with_version(own: str) -> str:
        site = folder / "site-packages"
        for path in site.glob("*.dist-info/*"):
            path.unlink()
        info = site / "other_name-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        number, _, commit = own.partition(" at ")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: other-name\nVersion: {number}\n")
        if commit:
            (info / "direct_url.json").write_text(f'{{"url": "file:///x", "vcs_info": {{"commit_id": "{commit}"}}}}')
        (info / "RECORD").write_text("trust_installed.py,,\n")
        (site / "trust_installed.py").write_text(f"own = {own!r}\n")  # its content does not matter
        sys.path.insert(0, str(site))
        code._distribution.cache_clear()
        found = digest(folder / "own", __init__="import trust_installed\n", losses="")
        sys.path.remove(str(site))
        return found

    (folder / "own").mkdir()
    assert (with_version("1.0") == with_version(version)) is same


def test_the_modules_of_the_distributions_that_xmcbench_needs_are_listed() -> None:
    lines = [line.replace("_", "-").lower() for line in requires("xmcbench") or [] if "extra" not in line]
    needed = {found[0] for line in lines if (found := match(r"[\w.-]+", line))}
    owned = {
        name: {own.replace("_", "-").lower() for own in owners} for name, owners in packages_distributions().items()
    }
    modules = {name for name, owners in owned.items() if owners & needed}
    assert {name for name in modules if not name.startswith("_")} - code.NEEDED <= {"functorch", "torchgen", "isympy"}
    assert modules >= code.NEEDED


@given(st.integers(), st.integers())
def test_two_constants_are_two_programs(first: int, second: int) -> None:
    digests = {code_of_source(f"RATE = {value}\n").digest for value in (first, second)}
    assert len(digests) == len({first, second})


def test_deep_expressions_are_read() -> None:
    assert code_of_source("x = " + "+".join(["1"] * 900)).digest != code_of_source("x = 1").digest
