"""A fuzzer that damages files of a store and its cache: what is read then is named in a line, or repaired, or the same.

A result that differs without a warning is a failure; so is a traceback.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import install_fakes
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry

from .worlds import ASKER, LIGHT, TRAINED, Killed, as_json, kill_after_checkpoints, reading, run_suite, warnings_heard

CHANGES: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, place: content[:place],
    "empty": lambda *_: b"",
    "append": lambda content, _: content + b"\n{}",
    "prepend": lambda content, _: b"\n" + content,
    "rotate": lambda content, place: content[place:] + content[:place],
    "twice": lambda content, _: content + content,
    "crlf": lambda content, _: content.replace(b"\n", b"\r\n") if b"\n" in content else content + b"\r",
    "swapped halves": lambda content, _: content[len(content) // 2 :] + content[: len(content) // 2],
    "sparse": lambda content, _: content[: len(content) // 2].ljust(len(content), b"\0"),
    "gzip": lambda content, _: gzip.compress(content),
}
DAMAGES = ("bit", "zeros", "absent", "noise", "directory", "link", "dangling", "pipe", *CHANGES)
Expected = dict[str, Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The fake plugin beside the built-in methods, for all tests of the module."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("site")
        install_fakes(root, patch)
        patch.setenv("XMCBENCH_PLUGINS", "xmcbench,xmcbench-fakes")
        registry.cache_clear()
        yield patch
    registry.cache_clear()


def results(root: Path, methods: dict[str, dict[str, Any]], patch: pytest.MonkeyPatch) -> Expected:
    """What is read from the store under `root` in each way: a result, or the XMCBenchError."""
    patch.setenv("XMCBENCH_CACHE", str(root / "cache"))
    found: Expected = {}
    for name, read in reading(methods).items():
        try:
            found[name] = read(root)
        except XMCBenchError as problem:
            found[name] = problem
    return found


def damage(path: Path, kind: str, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    place = int(rng.integers(max(1, len(content))))
    if kind == "bit" and content:
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == "zeros":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif kind == "noise":
        content = bytearray(rng.bytes(len(content)))
    elif kind in CHANGES:
        content = bytearray(CHANGES[kind](bytes(content), place))
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind in ("link", "dangling"):
        path.symlink_to("/dev/null" if kind == "link" else path.with_name("nothing"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "absent":
        path.write_bytes(content)


def judge(name: str, found: Any, expected: Any, heard: list[str]) -> str:
    """How the damage showed in one way to read the store."""
    if isinstance(found, XMCBenchError):
        assert all(0 < len(line) < 2000 for line in str(found).splitlines()), found
        return "named"
    if as_json(found) == as_json(expected):
        return "repaired" if heard else "same"
    fewer = isinstance(found, dict) and all(as_json(expected.get(key)) == as_json(found[key]) for key in found)
    assert fewer, f"{name}: silent wrong result: {found} for {expected}"
    assert heard, f"{name}: results are left out, and no warning says so"
    return "left out"


def fuzz(
    world: Path, methods: dict[str, dict[str, Any]], cases: int, seed: int, scratch: Path, patch: pytest.MonkeyPatch
) -> Counter[str]:
    """Damage one file of a copy of `world` in each case; count how it showed."""
    patch.chdir(scratch)
    shutil.copytree(world, scratch / "sound")
    expected = results(scratch / "sound", methods, patch)
    assert not [value for value in expected.values() if isinstance(value, XMCBenchError)], expected
    files = sorted(path.relative_to(world) for path in world.rglob("*") if path.is_file())
    files = [path for path in files if path.parts[0] in ("results", "cache") and path.parent.name != "locks"]
    rng, counts = np.random.default_rng(seed), Counter[str]()
    order = [files[i] for _ in range(cases // len(files) + 1) for i in rng.permutation(len(files))]
    for case in range(cases):
        path, kind = order[case], DAMAGES[case % len(DAMAGES)]
        copy = scratch / f"case-{case}"
        shutil.copytree(world, copy)
        damage(copy / path, kind, rng)
        with warnings_heard() as heard:
            try:
                found = results(copy, methods, patch)
                shown = {name: judge(name, found[name], expected[name], heard) for name in expected}
            except Killed:
                raise
            except Exception as problem:
                raise AssertionError(f"case {case}, {kind} in {path}: {type(problem).__name__}: {problem}") from problem
        counts[max(shown.values(), key=("same", "repaired", "left out", "named").index)] += 1
        shutil.rmtree(copy)
    return counts


@pytest.mark.long
def test_damage_never_gives_another_result(site: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.mkdir()
    site.setenv("XMCBENCH_CACHE", str(world / "cache"))
    methods = {**LIGHT, "asker": ASKER}
    assert all(record.metrics for record in run_suite(world, methods))
    counts = fuzz(world, methods, 15, 0, tmp_path, site)
    assert counts.total() == 15
    assert counts["named"] + counts["repaired"] + counts["left out"] > 6, counts


@pytest.mark.slow
def test_much_damage_never_gives_another_result(site: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a trained model, its caches, and a training that stopped on its way."""
    world = tmp_path / "world"
    world.mkdir()
    site.setenv("XMCBENCH_CACHE", str(world / "cache"))
    methods = {**LIGHT, "asker": ASKER, "trained": TRAINED}
    assert all(record.metrics for record in run_suite(world, methods))
    methods["stopped"] = TRAINED | {"learning_rate": 0.002}
    kill_after_checkpoints(world, methods, 3)
    assert len(list(Bench(world).root.glob("results/trials/*/checkpoint/step-*"))) == 3
    counts = fuzz(world, methods, 200, 1, tmp_path, site)
    print(counts)
    assert counts.total() == 200
    assert counts["named"] + counts["repaired"] + counts["left out"] > 100, counts
