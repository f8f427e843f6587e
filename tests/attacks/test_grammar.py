"""A fuzzer with the grammar of suites and cards: what it writes is read, or refused by name and line, quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.bench import Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmcbench.data.source import Draft, own_source
from xmcbench.errors import XMCBenchError
from xmcbench.suite.suite import SuiteFile, load_suite
from xmcbench.suite.tuning import Tune
from xmcbench.trial.budget import Budget
from xmcbench.trial.trial import Selection
from xmcbench_plugins.board.papers import read_published

SCALARS = st.sampled_from(
    ["0", "1", "-1", "0.5", "1e-3", ".inf", "-.inf", ".nan", "1e999", "0b_", "0x_", "1" * 150, "1:60", "~", "true",
     "!!int abc", "!!bool x", "!!binary a", "!!timestamp 2020-99-99", "!!python/name:os.system", "fake-ok", "fake-20",
     "P@1", "P@999999999", "nDCG@5", "zero-shot", "''", "'\\'", '"\\0"', "\u202e", "*a", "&a 1", "<<", "=", "|", "- x",
     "[]", "{}", "[[[]]]", "{? [a] : b}", "{low: 0, high: 1}", "{low: 1, high: .inf}", "x" * 500]
)  # fmt: skip
KEYS = st.sampled_from(
    [*SuiteFile.model_fields, *Tune.model_fields, *Budget.model_fields, *Selection.model_fields, *Draft.model_fields,
     "ok", "method", "strength", "width", "depths", "mode", "teacher", "rows", "tables", "metrics", "<<", "x"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(KEYS, inner, max_size=4).map(lambda d: f"{{{', '.join(f'{k}: {v}' for k, v in d.items())}}}")
    ),
    max_leaves=10,
)
SUITE: dict[str, Any] = {
    "name": "x",
    "datasets": ["fake-20"],
    "seeds": [0, 1],
    "budget": {"steps": 5},
    "selection": {"queries": 5},
    "settings": {"strength": 0.5},
    "sweep": {"width": [1, 2]},
    "methods": {"ok": {"method": "fake-ok"}},
    "tune": {"num_samples": 2, "space": {"ok": {"depths": [[1], [2]]}}},
}


def paths(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The key paths of all parts of nested mappings."""
    inner = (
        [deep for key, value in tree.items() for deep in paths(value, (*path, key))] if isinstance(tree, dict) else []
    )
    return [path, *inner] if path else inner


@st.composite
def suites(draw: st.DrawFn) -> str:
    """A good suite of which one or two parts are replaced by something else."""
    marks: dict[str, str] = {}
    tree = yaml.safe_load(yaml.safe_dump(SUITE))
    for number in range(draw(st.integers(1, 2))):
        *above, last = draw(st.sampled_from(paths(SUITE)))
        holder = tree
        for key in above:
            holder = holder[key] if isinstance(holder, dict) and key in holder else {}
        if isinstance(holder, dict):
            holder[draw(KEYS) if draw(st.integers(0, 4)) == 0 else last] = f"MARK{number}"
            marks[f"MARK{number}"] = draw(VALUES)
    text = yaml.safe_dump(tree, default_flow_style=True, width=10**9)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


FUZZ = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def refused_in_lines(read: Any, *arguments: Any) -> None:
    """Call a reader; an error must be an XMCBenchError of short lines, each with a name before its colon."""
    try:
        read(*arguments)
    except XMCBenchError as problem:
        lines = str(problem).splitlines()
        assert lines
        assert all(":" in line and len(line) < 3_000 for line in lines), lines


@FUZZ
@given(text=suites(), encoder=st.none() | st.just("tiny"), key=st.none() | st.sampled_from(["settings.strength", "x"]))
def test_any_suite_is_read_or_refused(bench: Bench, text: str, encoder: str | None, key: str | None) -> None:
    path = bench.root / "suite.yaml"
    path.write_text(text)
    refused_in_lines(load_suite, path, bench.root, [f"{key}=1"] if key else [], [], encoder)


def test_the_suite_that_is_changed_is_a_good_one(bench: Bench) -> None:
    path = bench.root / "suite.yaml"
    path.write_text(yaml.safe_dump(SUITE))
    assert len(load_suite(path, bench.root).variants) == 2


@FUZZ
@given(text=st.dictionaries(KEYS, VALUES, max_size=5).map(lambda d: "".join(f"{k}: {v}\n" for k, v in d.items())))
@pytest.mark.parametrize("kind", ["card", "rows"])
def test_any_card_or_rows_are_read_or_refused(bench: Bench, kind: str, text: str) -> None:
    folder = bench.root / "own"
    folder.mkdir(exist_ok=True)
    (folder / "card.yaml").write_text(text)
    refused_in_lines(*((own_source, folder) if kind == "card" else (read_published, folder / "card.yaml")))


@FUZZ
@given(value=VALUES, key=st.sampled_from([".".join(path) for path in paths(SUITE)]))
def test_any_set_is_read_or_refused(bench: Bench, key: str, value: str) -> None:
    path = Path(bench.root / "suite.yaml")
    path.write_text(yaml.safe_dump(SUITE))
    refused_in_lines(load_suite, path, bench.root, [f"{key}={value}"])
