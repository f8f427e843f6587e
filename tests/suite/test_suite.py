"""Suites: what they expand to, and how they answer to mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.bench import Bench
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.errors import XMCBenchError
from xmcbench.evaluation import DEFAULT_METRICS, ZERO_SHOT_METRICS
from xmcbench.files.yaml_lines import MAX_NUMBER, parse_value, read
from xmcbench.runs.plan import Action
from xmcbench.suite.suite import Suite, load_suite
from xmcbench.trial.record import Status
from xmcbench.trial.trial import Trial


def suite(bench: Bench, methods: Any, sets: tuple[str, ...] = (), datasets: tuple[str, ...] = (), **keys: Any) -> Suite:
    return load_suite(bench.suite(methods, **keys), bench.root, sets, datasets)


def trials(bench: Bench, methods: Any, **keys: Any) -> list[Trial]:
    return suite(bench, methods, **keys).trials({"fake-20": "some-hash"})


def labels(bench: Bench, methods: Any, **keys: Any) -> list[str]:
    return [variant.label for variant in suite(bench, methods, **keys).variants]


def test_a_plain_suite_resolves_every_default(bench: Bench) -> None:
    (trial,) = trials(bench, ["fake-ok"])
    assert trial.label == "ok"
    assert (trial.method, trial.distribution, trial.version) == ("fake-ok", "xmcbench-fakes", "1.0")
    assert trial.config == {"encoder": "none", "strength": 1.0, "width": 4, "depths": [1, 2], "mode": "wide"}
    assert (trial.seed, trial.budget.limits(), trial.selection) == (0, {"steps": 5}, None)
    assert suite(bench, ["fake-ok"]).metrics == list(DEFAULT_METRICS)
    assert suite(bench, ["fake-ok"], track="zero-shot").metrics == list(ZERO_SHOT_METRICS)
    assert suite(bench, ["fake-ok"], track="zero-shot", metrics=["PSP@1"]).metrics == ["PSP@1"]


def test_a_sweep_is_a_product_that_leaves_out_what_means_nothing(bench: Bench) -> None:
    found = labels(
        bench,
        {
            "a": {"method": "fake-ok"},
            "pinned": {"method": "fake-ok", "width": 7},
            "narrow": {"method": "fake-ok", "mode": "narrow"},
            "other": {"method": "fake-slow"},
        },
        sweep={"width": [1, 2], "strength": [0.5, 1.0]},
    )
    assert found == [
        "a[width=1,strength=0.5]", "a[width=1,strength=1.0]", "a[width=2,strength=0.5]", "a[width=2,strength=1.0]",
        "pinned[strength=0.5]", "pinned[strength=1.0]",
        "narrow[strength=0.5]", "narrow[strength=1.0]",  # width is unused in this mode
        "other",
    ]  # fmt: skip


def test_a_sweep_over_a_mode_and_what_only_one_mode_uses(bench: Bench) -> None:
    found = labels(bench, ["fake-ok"], sweep={"mode": ["wide", "narrow"], "width": [1, 2]})
    assert found == ["ok[mode=wide,width=1]", "ok[mode=wide,width=2]", "ok[mode=narrow]"]


def test_budgets_can_be_swept(bench: Bench) -> None:
    found = trials(bench, ["fake-ok"], sweep={"budget.steps": [10, 20]}, seeds=[0, 1])
    assert [(t.label, t.budget.steps, t.seed) for t in found] == [
        ("ok[budget.steps=10]", 10, 0), ("ok[budget.steps=10]", 10, 1),
        ("ok[budget.steps=20]", 20, 0), ("ok[budget.steps=20]", 20, 1),
    ]  # fmt: skip
    assert len({trial.key for trial in found}) == 4


def test_named_budgets_are_trials_of_their_own(bench: Bench) -> None:
    budgets = {"small": {"steps": 3}, "large": {"steps": 9, "peak_bytes": 1e9}}
    found = trials(bench, ["fake-ok"], budget=None, budgets=budgets)
    assert [(trial.label, trial.budget.limits()) for trial in found] == [
        ("ok[budget=small]", {"steps": 3}), ("ok[budget=large]", {"steps": 9, "peak_bytes": 1e9})
    ]  # fmt: skip
    (lone,) = trials(bench, ["fake-ok"], budget=None, budgets={"small": {"steps": 3}})
    assert (lone.label, lone.key) == ("ok", found[0].key)  # a name is for people


def test_budgets_can_lie_in_a_file_of_their_own(bench: Bench) -> None:
    (bench.root / "ours.yaml").write_text("small: {steps: 3}\nlarge:\n  stps: 9\n")
    with pytest.raises(XMCBenchError, match=r"ours.yaml:3: budgets.large.stps: unknown key \(did you mean 'steps'"):
        trials(bench, ["fake-ok"], budget=None, budgets="ours.yaml")
    (bench.root / "ours.yaml").write_text("small: {steps: 3}\nlarge: {steps: 9}\n")
    found = trials(bench, ["fake-ok"], budget=None, budgets="ours.yaml")
    assert [trial.budget.steps for trial in found] == [3, 9]


def test_equal_cells_stop_at_one_limit(bench: Bench) -> None:
    found = suite(bench, ["fake-ok"], budget={"steps": 5, "peak_bytes": 1e9}, equal="steps", sweep={"width": [1, 2]})
    assert found.equal == "steps"
    assert {variant.budget.steps for variant in found.variants} == {5}
    assert {variant.entry for variant in found.variants} == {"ok"}


def test_another_encoder_takes_the_place_of_every_one(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"

    def encoders(content: str) -> list[dict[str, Any]]:
        path.write_text("name: x\ndatasets: [catalog-200]\nbudget: {steps: 1}\n" + content)
        return [variant.config["encoder"] for variant in load_suite(path, tmp_path, encoder="y").variants]

    own = "{method: untrained, encoder: {name: tiny, pooling: cls}}"
    found = encoders(f"encoder: {{name: tiny, dropout: 0.5}}\nmethods: {{a: {{method: untrained}}, own: {own}}}\n")
    assert [(each["name"], each["pooling"], each["dropout"]) for each in found] == [("y", "mean", 0.5), ("y", "cls", 0)]
    assert encoders("methods: {a: {method: untrained}}\n")[0]["name"] == "y"
    with pytest.raises(XMCBenchError, match="--encoder y: the suite sweeps over encoders"):
        encoders("methods: {a: {method: untrained}}\nsweep: {encoder: [tiny, minilm]}\n")


def test_encoder_and_settings_reach_the_methods_that_have_them(bench: Bench) -> None:
    found = suite(
        bench,
        {"a": {"method": "fake-ok"}, "own": {"method": "fake-ok", "strength": 3}, "b": {"method": "fake-slow"}},
        encoder={"layers": 2},
        settings={"strength": 2},
    )
    assert [variant.config.get("encoder") for variant in found.variants] == [{"layers": 2}, {"layers": 2}, None]
    assert [variant.config.get("strength") for variant in found.variants] == [2.0, 3.0, None]


def test_order_and_labels_leave_keys_unchanged(bench: Bench) -> None:
    """Benchopt #807: a key is of what is run, not of where it stands."""
    methods = {"a": {"method": "fake-ok", "width": 3, "strength": 2}, "b": {"method": "fake-rare"}}
    turned = {"z": {"method": "fake-rare"}, "y": {"strength": 2, "width": 3, "method": "fake-ok"}}
    before = {trial.method: trial.key for trial in trials(bench, methods)}
    assert {trial.method: trial.key for trial in trials(bench, turned)} == before


CHANGES: dict[str, Any] = {
    "method": "other",
    "distribution": "other",
    "versions": {"method": 2},
    "config": {"width": 5},
    "dataset_hash": "other",
    "seed": 1,
    "budget": {"steps": 6},
    "selection": {"queries": 3},
    "track": "zero-shot",
}


@pytest.mark.parametrize("field", CHANGES)
def test_any_one_field_makes_another_key(bench: Bench, field: str) -> None:
    (trial,) = trials(bench, ["fake-ok"])
    assert Trial.model_validate(trial.model_dump() | {field: CHANGES[field]}).key != trial.key


def test_names_for_people_are_not_in_the_key(bench: Bench) -> None:
    (trial,) = trials(bench, ["fake-ok"])
    assert trial.changed(label="x", dataset="y", version="2.0").key == trial.key


MISTAKES = [
    ("methods: {ok: {method: fake-ok, widht: 3}}", "4: methods.ok.widht: unknown key (did you mean 'width'?)"),
    ("methods: {ok: {method: fake-okk}}", "4: methods.ok.method: unknown method 'fake-okk' (did you mean 'fake-ok'"),
    ("methods: {ok: {width: 3}}", "4: methods.ok: missing key 'method'"),
    ("methods: {ok: {method: 3}}", "4: methods.ok: found 3, expected the name of a method"),
    ("methods: {ok: {method: fake-ok, width: hot}}", "4: methods.ok.width: found 'hot', expected a valid integer"),
    ("methods: {ok: {method: fake-ok, width: yes}}", "4: methods.ok.width: found True, expected a valid integer"),
    ("methods: {ok: {method: fake-ok, width: '3'}}", "4: methods.ok.width: found '3', expected a valid integer"),
    ("methods: {ok: {method: fake-ok, depths: [1, x]}}", "4: methods.ok.depths[1]: found 'x', expected a valid"),
    ("methods: {ok: {method: fake-ok, encoder: 3}}", "found 3, expected a valid string or an object"),
    ("methods: {ok: {method: fake-ok, mode: narrow, width: 3}}", "4: methods.ok.width: has no effect with"),
    ("methods: {}", "4: methods: found {}"),
    ("seed: [1]", "5: seed: unknown key (did you mean 'seeds'"),
    ("seeds: 1", "5: seeds: found 1, expected a valid array"),
    ("budget: {step: 3}", "4: budget.step: unknown key (did you mean 'steps'?)"),
    ("budget: {}", "4: budget: a budget needs at least one of epochs"),
    ("budget: {steps: -1}", "budget.steps: found -1, expected greater than 0"),
    ("track: zero-shot\nselection: {queries: 3}", "6: selection: needs training annotations, which track: zero"),
    ("track: zeroshot", "5: track: found 'zeroshot', expected 'supervised' or 'zero-shot'"),
    ("metrics: [P@1, nDGC@3]", "5: metrics[1]: unknown metric 'nDGC@3' (did you mean 'nDCG@"),
    ("selection: {queries: 3, metric: X@1}", "5: selection.metric: unknown metric 'X@1'"),
    ("selection: {querys: 3}", "5: selection.querys: unknown key (did you mean 'queries'?)"),
    ("settings: {widht: 3}", "5: settings.widht: no method here has this setting (did you mean 'width'?)"),
    ("settings: {width: x}", "5: settings.width: found 'x', expected a valid integer"),
    ("sweep: {widht: [3]}", "5: sweep.widht: no method here has this setting (did you mean 'width'?)"),
    ("sweep: {width: [3, x]}", "5: sweep.width: found 'x', expected a valid integer"),
    ("sweep: {width: []}", "5: sweep.width: found no values"),
    ("sweep: {budget.steps: [0]}", "5: sweep.budget.steps: found 0, expected greater than 0"),
    ("sweep: {budget.stps: [1]}", "5: sweep.budget.stps: no method here has this setting (did you mean 'budget.steps'"),
    ("encoder: tiny\nsettings: {encoder: x}", "5: encoder: given here and in settings"),
    ("datasets: [fake-21]", "unknown dataset 'fake-21' (did you mean 'fake-20'"),
    ("datasets: [fake-absent]", "datasets[0]: fake-absent is not in"),
    ("timeout: 0", "timeout: found 0"),
    ("budgets: {a: {steps: 1}}", "expected one of the keys 'budget' and 'budgets'"),
    ("equal: step", "5: equal: unknown limit 'step' (did you mean 'steps'?)"),
    ("equal: flops", "5: equal: every budget must stop at flops alone, found one of steps"),
    ("tables: {t: {columns: [widht]}}", "5: tables.t.columns[0]: unknown column 'widht' (did you mean 'width'"),
    ("tables: {t: {columns: [X@1]}}", "5: tables.t.columns[0]: unknown metric 'X@1'"),
    ("tables: {t: {columns: [P@1], methods: [okk]}}", "5: tables.t.methods[0]: unknown method label 'okk'"),
]  # fmt: skip
GOOD = {
    "name": "name: x",
    "datasets": "datasets: [fake-20]",
    "budget": "budget: {steps: 5}",
    "methods": "methods: {ok: {method: fake-ok}}",
}


def written(bench: Bench, line: str) -> Path:
    """A good suite with `line` in place of its key, or at its end (line 5)."""
    key = line.split(":")[0]
    lines = [good for name, good in GOOD.items() if name != key]
    path = bench.root / "suite.yaml"
    path.write_text("\n".join([*lines, line]) + "\n")
    return path


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_line_and_what_would_do(bench: Bench, line: str, message: str) -> None:
    path = written(bench, line)
    with pytest.raises(XMCBenchError) as caught:
        load_suite(path, bench.root)
    told = str(caught.value)
    assert message in told
    assert all(told_line.startswith(f"{path}:") for told_line in told.splitlines())


def test_all_mistakes_are_told_at_once(bench: Bench) -> None:
    path = written(bench, "methods: {a: {method: fake-ok, widht: 1}, b: {method: nothing}}")
    path.write_text(path.read_text() + "metrics: [Q@1]\n")
    with pytest.raises(XMCBenchError) as caught:
        load_suite(path, bench.root)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "metrics[0]", "methods.b.method", "methods.a.widht"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: x\nname: y\n", ":2: name: the key is there twice"),
        (b"a: {b: 1,\n b: 2}\n", ":2: a.b: the key is there twice"),
        (b"name: [\n", ":2: not YAML"),
        (b"name: !!python/object:os.system x\n", ":1: name: found the tag"),
        (b"", ": found nothing, expected keys and values"),
        (b"- a\n", ": found no mapping"),
        (b"name: \xff\n", ": not UTF-8 at byte 6"),
        (b"a: &x {b: *x}\n", ":1: a value that holds itself"),
        (b"? [a]\n: 1\n", ":1: found a list or mapping as a key"),
    ],
)
def test_what_is_no_suite_file_is_told_in_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(XMCBenchError) as caught:
        read(path)
    assert f"{path}{message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_suite_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match="cannot read: No such file"):
        read(tmp_path / "none.yaml")


def test_anchors_and_merges_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: {<<: *a}\n")
    assert read(path).data == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
        "d": {"x": 1, "y": 2},
    }


def is_number_here(text: str) -> bool:
    """PyYAML writes `1e5` as a bare word, which a suite reads as a number: what people mean by it."""
    return re.fullmatch(r"[-+]?[\d_.]+[eE][-+]?\d+", text) is not None


WORDS = st.text(st.characters(codec="ascii")).filter(lambda text: not is_number_here(text))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-MAX_NUMBER, MAX_NUMBER) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), inner),
    max_leaves=8,
)


@given(values)
def test_reading_a_value_gives_what_was_written(value: Any) -> None:
    assert parse_value(yaml.safe_dump(value), "") == value


def test_numbers_in_scientific_notation_are_numbers() -> None:
    assert [parse_value(text, "") for text in ("1e-4", "2E+3", "1.5e2", "2026-01-02", "e4", "20_000")] == [
        1e-4, 2e3, 150.0, "2026-01-02", "e4", 20000
    ]  # fmt: skip


def test_set_replaces_what_the_file_says(bench: Bench) -> None:
    methods = {"v1.5": {"method": "fake-ok", "width": 2}}
    found = suite(
        bench,
        methods,
        sets=("budget.steps=10", "settings.strength=1e-2", "methods.v1.5.width=9", "seeds=[3, 4]",
              "sweep.budget.epochs=[1, 2]", "selection.queries=7"),
    )  # fmt: skip
    assert found.seeds == [3, 4]
    assert found.selection is not None
    assert found.selection.queries == 7
    assert [v.budget.limits() for v in found.variants] == [{"steps": 10, "epochs": 1}, {"steps": 10, "epochs": 2}]
    assert {(v.config["strength"], v.config["width"]) for v in found.variants} == {(0.01, 9)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("budget.step=1", "--set budget.step=1: budget.step: unknown key (did you mean 'steps'?)"),
        ("budget.steps=x", "--set budget.steps=x: budget.steps: found 'x', expected a valid integer"),
        ("batch=1", "--set batch=1: unknown key 'batch'"),
        ("methods.no.width=1", "--set methods.no.width=1: unknown method label 'no' (known: ok)"),
        ("methods.ok=1", "--set methods.ok=1: expected a setting of the method, as methods.ok.KEY=VALUE"),
        ("seeds=[]", "--set seeds=[]: seeds: found [], expected at least 1"),
        ("methods.ok.widht=1", "--set methods.ok.widht=1: methods.ok.widht: unknown key (did you mean 'width'?)"),
        ("settings.widht=1", "--set settings.widht=1: settings.widht: no method here has this setting"),
        ("name.first=1", "--set name.first=1: name is 'test', which holds no keys"),
        ("seeds=[", "--set seeds=[: '[' is not a YAML value"),
        ("seeds", "--set seeds: expected key=value"),
    ],
)
def test_a_bad_set_is_an_error_of_the_option(bench: Bench, setting: str, message: str) -> None:
    with pytest.raises(XMCBenchError) as caught:
        suite(bench, ["fake-ok"], sets=(setting,))
    assert message in str(caught.value)


def test_dataset_replaces_the_datasets(bench: Bench) -> None:
    assert suite(bench, ["fake-ok"], datasets=("catalog-77",)).datasets == ["catalog-77"]
    with pytest.raises(XMCBenchError, match=r"^--dataset: datasets\[0\]: unknown dataset 'fake-2'"):
        suite(bench, ["fake-ok"], datasets=("fake-2",))


def test_the_documentation_names_every_action_and_status() -> None:
    text = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
    words = {*Action, *Status}
    assert {word for word in words if f"`{word}`" not in text} == set()
