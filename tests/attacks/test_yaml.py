"""Hostile suites, cards and rows: each is refused in one line that names the file, or is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Bench

from xmcbench.data.source import own_source
from xmcbench.errors import XMCBenchError, secrets
from xmcbench.errors.secrets import redact
from xmcbench.files import yaml_lines
from xmcbench.files.yaml_lines import parse_value, read
from xmcbench.suite.suite import load_suite
from xmcbench_plugins.board.papers import read_published


def bomb(link: str, levels: int = 30) -> str:
    """A YAML file whose value doubles at each level."""
    lines = ["a0: &a0 {x: 1, y: 2}", *(link.format(n=n, m=n - 1) for n in range(1, levels))]
    return "\n".join(lines)


HOSTILE = {
    "alias bomb": (bomb("a{n}: &a{n} {{x: *a{m}, y: *a{m}}}"), ":1"),
    "list bomb": (bomb("a{n}: &a{n} [*a{m}, *a{m}, *a{m}]"), ":1"),
    "merge bomb": (bomb("a{n}: &a{n} {{<<: [*a{m}, *a{m}]}}"), ": more than 100,000 values"),
    "bomb inside a merge": (
        "a0: &a0 {x: 1, y: 2}\nb: {<<: ["
        + ", ".join(f"&a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 30))
        + "]}",
        ":2: more than 100,000 values",
    ),
    "depth behind aliases": (
        "\n".join(["a0: &a0 1", *(f"a{n}: &a{n} {'[' * 40}*a{n - 1}{']' * 40}" for n in range(1, 40))]),
        "values are nested more than 50 deep",
    ),
    "depth": ("name: " + "[" * 900 + "]" * 900, ":1: values are nested more than 50 deep"),
    "great depth": ("name: " + "[" * 100_000, ":1: values are nested more than 50 deep"),
    "block depth": ("\n".join(" " * n + "a:" for n in range(900)), "values are nested more than 50 deep"),
    "question depth": ("? " * 100_000 + "a", "values are nested more than 50 deep"),
    "width": ("name: [" + "1," * 200_000 + "]", ":1: more than 100,000 values"),
    "size": ("name: " + "x" * 5_000_000, "larger than 4,000,000 bytes"),
    "digits": ("name: " + "1" * 5_001, ":1: name: found a number of 5,001 characters"),
    "sexagesimal": ("name: 1" + ":1" * 1_000_000, ":1: name: found a number of 2,000,001 characters"),
    "64 bits": ("name: 18446744073709551616", ":1: name: found '18446744073709551616', expected a whole number of"),
    "int": ("name: !!int abc", ":1: name: found 'abc', expected a value of type int"),
    "float": ("a: 1\nname: !!float abc", ":2: name: found 'abc', expected a value of type float"),
    "bool": ("name: !!bool abc", ":1: name: found 'abc', expected a value of type bool"),
    "binary": ("name: !!binary abc", ":1: name: found the tag '!!binary', expected text, a number, true"),
    "timestamp": ("name: !!timestamp 2020-99-99", ":1: name: found the tag '!!timestamp'"),
    "date": ("name: !!timestamp 2020-01-01", ":1: name: found the tag '!!timestamp'"),
    "set": ("name: !!set {a, b}", ":1: found the tag"),
    "python": ("name: !!python/object/apply:os.system [x]", ":1: found the tag"),
    "no binary digits": ("name: 0b_", ":1: name: found '0b_', expected a value of type int"),
    "no hexadecimal digits": ("name: 0x_", ":1: name: found '0x_', expected a value of type int"),
    "infinity": ("name: [1, -.inf]", ":1: name[1]: found '-.inf', expected a finite number"),
    "not a number": ("name: .nan", ":1: name: found '.nan', expected a finite number"),
    "overflow": ("name: 1e999", ":1: name: found '1e999', expected a finite number"),
    "more than a record holds": ("name: 1.5e24", ":1: name: found '1.5e24', expected a finite number of at most 1e+24"),
    "default tag": ("name: =", ":1: name: found the tag '!!value'"),
    "merge of text": ("name: {<<: x}", ":1: not YAML"),
    "merge with itself": ("name: &a {<<: *a, b: *a}", ":1: a value that holds itself"),
    "key of a merge": ("name: {<<: {? [a] : b}}", ":1: found a list or mapping as a key"),
    "no anchor": ("name: *nobody", ":1: not YAML"),
    "two documents": ("name: x\n--- \nname: y", "not YAML"),
    "control character": ("name: \x07", "not YAML"),
    "no text": ("\0\0\0\0", "not YAML"),
    "surrogate": ('name: "\\ud800"', "not YAML"),
    "long key": (f"? {'x' * 100_000}\n: 1", ""),
    "two long keys": (f"? {'x' * 100_000}\n: 1\n" * 2, "the key is there twice"),
    "long text": ("name: x\nbudget: " + "x" * 1_000_000, ""),
}


def card(path: Path, _: Bench) -> Any:
    (path.parent / "own").mkdir(exist_ok=True)
    return own_source(path.rename(path.parent / "own" / "card.yaml").parent)


READERS: dict[str, Callable[[Path, Bench], Any]] = {
    "yaml": lambda path, _: read(path),
    "suite": lambda path, bench: load_suite(path, bench.root),
    "card": card,
    "rows": lambda path, _: read_published(path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(bench: Bench, case: str, reader: str) -> None:
    content, message = HOSTILE[case]
    path = bench.root / "x.yaml"
    path.write_text(content)
    if case.startswith("long") and reader == "yaml":
        read(path)
        return
    with pytest.raises(XMCBenchError) as caught:
        READERS[reader](path, bench)
    lines = str(caught.value).splitlines()
    assert max(map(len, lines)) < 2_000, "a message repeats a huge value"
    if reader == "yaml":
        assert len(lines) == 1
        assert message in lines[0]
        assert lines[0].startswith(str(path))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5_001, ".inf", "1e999", "!!timestamp 2020-99-99", "0b_", "*a"])
def test_a_hostile_value_of_an_option_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(XMCBenchError, match=r"^--set lr: .* is not a YAML value: ") as caught:
        parse_value(text, "--set lr")
    assert len(str(caught.value)) < 1_000


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")
@pytest.mark.parametrize("reader", ["suite", "rows"])
def test_only_regular_files_are_read(bench: Bench, reader: str) -> None:
    os.mkfifo(bench.root / "pipe")
    for path in (bench.root / "pipe", Path("/dev/zero"), bench.root):
        with pytest.raises(XMCBenchError, match=f"^{path}: "):
            READERS[reader](path, bench)


def test_the_limits_leave_room_for_real_files(tmp_path: Path) -> None:
    rows = "\n".join(f"- {{a: {n}, b: [1.5, x, null]}}" for n in range(5_000))
    (tmp_path / "x.yaml").write_text(f"rows:\n{rows}\n")
    assert len(read(tmp_path / "x.yaml").data["rows"]) == 5_000
    assert yaml_lines.MAX_VALUES > 5_000 * 8


@pytest.mark.parametrize(
    "space",
    [
        "[]",
        "{low: 0, high: .inf}",
        "{low: .nan, high: 1}",
        "{low: -1e308, high: 1e308}",
        "{low: 0, high: 18446744073709551615}",
        "{low: 1, high: 1}",
        "{low: 0, high: 1, log: true}",
        "[.nan]",
        "{}",
        "3",
    ],
)
def test_a_space_that_cannot_be_drawn_from_is_refused_before_anything_runs(bench: Bench, space: str) -> None:
    path = bench.suite({"ok": {"method": "fake-ok"}}, selection={"queries": 5})
    path.write_text(f"{path.read_text()}tune: {{num_samples: 2, space: {{ok: {{strength: {space}}}}}}}\n")
    with pytest.raises(XMCBenchError, match=r"x?\.yaml:\d+: "):
        load_suite(path, bench.root)


def test_a_sweep_of_a_billion_points_is_one_line(bench: Bench) -> None:
    numbers = list(range(1000))
    path = bench.suite(["fake-ok"], sweep={"width": numbers, "strength": numbers, "budget.steps": numbers})
    with pytest.raises(XMCBenchError, match=r"yaml:\d+: sweep: found 1,000,000,000 points for ok, expected at most"):
        load_suite(path, bench.root)


def test_a_billion_trials_are_one_line(bench: Bench) -> None:
    path = bench.suite(["fake-ok"], sweep={"width": list(range(1, 5001))}, seeds=list(range(50_000)))
    with pytest.raises(XMCBenchError, match=r"found 250,000,000 trials, expected at most 100,000"):
        load_suite(path, bench.root)


@pytest.mark.parametrize("text", ["strength: .inf", "strength: .nan", "strength: 1e400", "width: 1e400"])
def test_a_setting_that_is_no_finite_number_is_refused_before_anything_runs(bench: Bench, text: str) -> None:
    path = bench.suite(["fake-ok"])
    path.write_text(f"{path.read_text()}settings: {{{text}}}\n")
    with pytest.raises(XMCBenchError, match="expected a finite number"):
        load_suite(path, bench.root)
    with pytest.raises(XMCBenchError, match="expected a finite number"):
        load_suite(bench.suite(["fake-ok"]), bench.root, sets=[f"settings.{text.replace(': ', '=')}"])


@pytest.mark.parametrize(
    ("place", "depth"),
    [("", 0), ("methods: {a: {method: popular}}\nsettings:", 2), ("methods:\n  a:\n    method: popular", 4)],
)
def test_of_49_000_wrong_keys_only_those_that_are_told_take_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, depth: int
) -> None:
    lines = [f"{' ' * depth}key{number}: 1" for number in range(49_000)]
    path = tmp_path / "suite.yaml"
    path.write_text("name: t\ndatasets: [catalog-200]\nbudget: {steps: 2}\n" + place + "\n" + "\n".join(lines))
    stripped = list[int]()  # the lengths of texts that are stripped of secrets, as each text of a message is

    def noted(text: str) -> str:
        stripped.append(len(text))
        return redact(text)

    monkeypatch.setattr(secrets, "redact", noted)
    with pytest.raises(XMCBenchError) as caught:
        load_suite(path, tmp_path)
    *told, last = str(caught.value).splitlines()
    assert last == f"{path}: more than 99 problems; the first are above"
    assert 0 < len(stripped) < 20 * len(told)
