"""`xmcbench new` writes packages that install, pass `xmcbench check`, and train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from commands import told
from environments import environment

from xmcbench.cli import main
from xmcbench.plugins.registry import registry
from xmcbench_plugins.conformance.commands import Kind

ROOT = Path(__file__).parents[2]
OWN = {"XMCBENCH_PLUGINS": "xmcbench,xmcbench-my-own"}
COMMAND = ["-c", "from xmcbench.cli import main; main()"]


def make(kind: str, name: str, folder: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["new", kind, name, "--folder", str(folder)])
    assert left.value.code == 0


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plugin is loaded: whether a name is taken is another test's matter."""
    monkeypatch.setenv("XMCBENCH_PLUGINS", "none")
    registry.cache_clear()
    yield
    registry.cache_clear()


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_package_compiles_and_is_formatted(kind: str, tmp_path: Path) -> None:
    make(kind, "my-own", tmp_path)
    sources = sorted(tmp_path.rglob("*.py"))
    assert {path.parent.name for path in sources} == {"xmcbench_my_own", "tests"}
    for path in sources:
        compile(path.read_text(encoding="utf-8"), path, "exec")
    for command in (["check", "--select", "E,F,I,UP,B,SIM,ARG,PTH"], ["format", "--check"]):
        options = ["--isolated", "--line-length", "120", "--target-version", "py311"]
        ignored = ["--ignore", "ARG002"] if command[0] == "check" else []  # a contract's arguments
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options, *ignored, "."],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluator", "My_Metric"], "name 'My_Metric': expected small letters, digits and single hyphens"),
        (["evaluator", "p"], "evaluator 'P' is registered already, expected a new name"),
        (["tracker", "mine", "--folder", "."], "found files, expected an empty or a new folder"),
    ],
)
def test_wrong_names_and_folders_are_errors(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert message in told(capsys, "new", *arguments)[2]


@pytest.mark.long
def test_a_wheel_of_a_new_method_is_installed_checked_and_trained(tmp_path: Path) -> None:
    """What its author would do, without a network: build, install, check, run."""
    package, python = tmp_path / "my-own", environment(tmp_path / "environment")
    make("method", "my-own", package)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    wheels = ["--no-deps", "--no-index", "--no-build-isolation"]
    call([*pip, "wheel", *wheels, "--wheel-dir", str(tmp_path), str(package)])
    (wheel,) = tmp_path.glob("*.whl")
    call([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)])

    own = OWN | {"XMCBENCH_CACHE": str(tmp_path / "cache")}
    command = [str(python), *COMMAND]
    assert call([*command, "check", "my-own"], **own).splitlines()[-1] == "method my-own: all rules kept"
    suite = ["run", str(package / "suite.yaml"), "--only", "my-own", "--dataset", "random-pairs-200"]
    shown = call([*command, *suite, "--store", str(tmp_path / "results")], **own)
    assert "my-own" in shown


def call(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=Path(command[0]).parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_new_package_passes_its_own_tests_and_trains(kind: str, tmp_path: Path) -> None:
    package, python = tmp_path / "my-own", environment(tmp_path / "environment")
    make(kind, "my-own", package)
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
    call([*pip, "--no-deps", "--no-index", "--no-build-isolation", str(package)])
    own = OWN | {"XMCBENCH_CACHE": str(tmp_path / "cache")}
    tests = [str(python), "-m", "pytest", "-q", "-c", str(package / "pyproject.toml"), str(package / "tests")]
    assert " passed" in call(tests, **own)
    track = ["--track", "my-own"] if kind == "tracker" else []
    run = [str(python), *COMMAND, "run", str(package / "suite.yaml"), "--store", str(tmp_path / "results")]
    call([*run, *track], **own)
    assert kind != "tracker" or (tmp_path / "results" / "my-own.txt").exists()
