"""Accidents of researchers: each happens to a store as it would, and then everything that shows results is read.

Two seeds have the P@1 `BEFORE` and `AFTER`, since something changed between them. No surface may show their mean, and
what changed must be named where the results are.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from commands import told
from fakes import install
from fakes.bench import Bench

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.significance import samples
from xmcbench.plugins import code
from xmcbench.plugins.registry import registry
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.trial import provenance
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.board import results

BEFORE, AFTER = 0.125, 0.625
MEAN = re.compile(r"(?<![\d.])(37\.50?|0?\.3750*)(?!\d)")
PARTS = {
    "helper": "TURN = 1\n",
    # No hook is for encoders: a plugin's method makes its own one, of a class that may be in another distribution.
    "encoder": """
import numpy as np

TURN = 1


class Encoder:
    turn = TURN

    def embed(self, texts):
        return np.array([int(text.split()[1]) for text in texts])
""",
    "method": """
import numpy as np
import turned_helper
from turned_encoder import Encoder
from xmcbench import Method, MethodInfo, Predictions, hookimpl, teachers
from xmcbench.plugins.registry import registry

TURN = 1


class Turned(Method):
    name = "turned"
    info = MethodInfo("ranks the label of some texts first")

    class Config(Method.Config):
        teacher: teachers.TeacherConfig = {"name": "turned-teacher"}
        right: int = 0

    @classmethod
    def versions(cls, config):
        return super().versions(config) | {"sampler turned-sampler": 1, "teacher turned-teacher": 1}

    def build_encoder(self):
        return Encoder()

    def fit(self, train, run):
        self.encoder = self.build_encoder()
        judge, sampler = run.judge(self.config.teacher), registry().thing("sampler", "turned-sampler")
        self.turn = TURN * turned_helper.TURN * self.encoder.turn
        self.turn *= judge.turn * judge.teacher.turn * sampler.parts()["turn"]
        run.ledger.steps = run.budget.steps

    def predict(self, texts, k):
        numbers = self.encoder.embed(texts)
        right = numbers % 8 < (self.config.right or (1 if self.turn == 1 else 5))
        first = np.where(right, numbers, numbers + 1) % 20
        indices = (first[:, None] + 2 * np.arange(k)) % 20 if k <= 10 else (first[:, None] + np.arange(k)) % 20
        return Predictions(indices.astype(np.int32), np.tile(-np.arange(k, dtype=np.float32), (len(texts), 1)))

    def save(self, directory):
        (directory / "turn.txt").write_text(str(self.turn))

    def load(self, directory):
        self.encoder = self.build_encoder()
        self.turn = int((directory / "turn.txt").read_text())


@hookimpl
def register_methods(register):
    register(Turned)
""",
    "sampler": """
from xmcbench import hookimpl, sampling

TURN = 1


@hookimpl
def register_samplers(register):
    register(sampling.Recipe("turned-sampler", lambda: {"turn": TURN}))
""",
    "teacher": """
from xmcbench import hookimpl, teachers

TURN = 1


class TurnedTeacher(teachers.Teacher):
    name, summary, judge, turn = "turned-teacher", "is asked nothing", "turned-judge", TURN

    class Config(teachers.Teacher.Config):
        pass

    def ask(self, pairs):
        raise NotImplementedError


@hookimpl
def register_teachers(register):
    register(TurnedTeacher)
""",
    "judge": """
from xmcbench import hookimpl
from xmcbench.teachers import JudgeMaker

TURN = 1


class Judge:
    def __init__(self, teacher):
        self.teacher, self.turn = teacher, TURN


class TurnedJudges(JudgeMaker):
    name = "turned-judge"

    def judge(self, teacher):
        return Judge(teacher)


@hookimpl
def register_judges(register):
    register(TurnedJudges)
""",
    "evaluator": f"""
from xmcbench import hookimpl

TURN = 1


class Turned:
    name, summary = "Turned", "a constant"

    def compute(self, hits, k):
        return {BEFORE} if TURN == 1 else {AFTER}


@hookimpl
def register_evaluators(register):
    register(Turned())
""",
}


class Lab(Bench):
    """A bench with a plugin in several modules, each of which may turn its results round."""

    METHODS = {"turned": {"method": "turned"}, "other": {"method": "turned", "right": 7}}  # noqa: RUF012

    def trained(self, *seeds: int, store: str = "results", changed: bool = False) -> list[Record]:
        """Run the suite of two methods with these seeds."""
        suite = self.suite(self.METHODS, seeds=[*seeds], metrics=["P@1", "Turned@1"])
        runner = self.runner(suite, debug=True, changed=changed, store=self.root / store)
        return runner.run(runner.plan(), self.heard)

    def edit(self, part: str, old: str = "TURN = 1\n", new: str = "TURN = -1\n") -> None:
        """Edit a module, and let this process be a new one."""
        module = self.root / "site" / f"turned_{part}.py"
        content = module.read_text()
        assert old in content
        module.write_text(content.replace(old, new))
        forget()

    def of(self, label: str) -> list[Record]:
        return [record for record in self.store.records() if record.trial.label == label]


def forget() -> None:
    """What this process knows of plugins, so that it reads them as a new one does."""
    for name in [name for name in sys.modules if name.startswith(("turned_", "xmcbench_fakes"))]:
        del sys.modules[name]
    importlib.invalidate_caches()
    registry.cache_clear()
    code._code_at.cache_clear()
    code._home.cache_clear()
    provenance._commit_of.cache_clear()


pytestmark = pytest.mark.long


@pytest.fixture
def lab(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    site = bench.root / "site"
    for part, source in PARTS.items():
        (site / f"turned_{part}.py").write_text(source)
        if part not in {"helper", "encoder"}:
            install(site, f"turned-{part}", {part: f"turned_{part}"})
    names = ",".join(f"turned-{part}" for part in PARTS)
    monkeypatch.setenv("XMCBENCH_PLUGINS", f"xmcbench-fakes,xmcbench,{names}")
    monkeypatch.setattr(results, "ACCEPTED", bench.root / "accepted")  # reading the rows of others takes time
    monkeypatch.setattr(results, "PUBLISHED", results.PUBLISHED / "dexml.yaml")
    forget()
    yield Lab(bench.root)
    forget()


def surfaces(lab: Lab, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """All that shows the results of the store, by where: output of commands, files, and what Python gets."""

    def shown(*arguments: object) -> str:
        code, output, errors = told(capsys, *arguments)
        assert "Traceback" not in errors
        assert code in (0, 2), errors
        return output + errors

    places = lab.places
    keys = [record.key for record in lab.of("turned")]
    rows = "leaderboard", "--dataset", "fake-20"
    shown(*rows, "--format", "html", "-o", lab.root / "page", *places)
    shown(*rows, "--format", "every-eval-ever", "-o", lab.root / "logs", *places)
    board = xb.leaderboard("fake-20", variants=True, store=lab.store.root, data=lab.root / "data")
    return {form: render(board.table, form) for form in FORMATS} | {
        "terminal": shown(*rows, *places),
        "page": "".join(path.read_text() for path in sorted((lab.root / "page").rglob("*.html"))),
        "logs": "".join(path.read_text() for path in sorted((lab.root / "logs").rglob("*.json"))),
        "Python": f"{board}{[asdict(group) for group in board.groups]}",
        "compare": shown("compare", "turned", "other", *places),
        "analyse": shown("analyse", *keys, "-o", lab.root / "analysis", *places),
        "tables": shown("tables", lab.root / "suite.yaml", *places),
    }


def assert_kept_apart(
    lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, says: str
) -> None:
    """No surface shows the mean, and each says what is older."""
    own = lab.of("turned")
    assert {record.metrics["P@1"] for record in own} == {BEFORE, AFTER}
    found = surfaces(lab, capsys)
    for where, text in found.items():
        assert not (mean := MEAN.search(text)), f"{where}: {text[max(0, mean.start() - 300) : mean.end() + 20]}"
    for where in ("table", "markdown", "latex", "csv", "json", "page", "Python"):
        assert says in " ".join(found[where].replace("\\n", " ").split()), f"{where} does not say: {says}"
    assert "‡" in found["terminal"]
    assert "of other code" in caplog.text, "compare"
    with pytest.raises(XMCBenchError, match="differ in more than their seed"):  # what claims and figures are made by
        samples(own, [{}] * len(own))


def test_what_differs_in_its_seed_alone_has_a_mean_on_every_surface(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other side: `MEAN` would be found."""
    lab.edit("method", "1 if self.turn == 1 else 5", "1 if self.seed else 5")
    lab.edit("method", "        run.ledger.steps", "        self.seed = run.seed\n        run.ledger.steps")
    lab.edit("method", "str(self.turn)", "str(self.seed)")
    lab.edit("method", "self.turn = int(", "self.seed = int(")
    lab.trained(0, 1)
    assert {record.metrics["P@1"] for record in lab.of("turned")} == {BEFORE, AFTER}
    found = surfaces(lab, capsys)
    assert {where for where, text in found.items() if not MEAN.search(text)} <= {"logs", "analyse"}


@pytest.mark.parametrize("part", ["method", "helper", "encoder", "sampler", "teacher", "judge"])
def test_seeds_of_two_codes(
    part: str, lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever part of the plugin was edited, also one in a module or a distribution of its own."""
    lab.trained(0)
    lab.edit(part)
    lab.trained(0, 1)
    assert_kept_apart(lab, capsys, caplog, "of 1 trial, now code")


def test_changed_on_one_seed_of_five(
    lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lab.trained(0, 1, 2, 3, 4)
    lab.edit("method")
    lab.trained(0, changed=True)
    assert_kept_apart(lab, capsys, caplog, "of 4 trials, now code")
    text = surfaces(lab, capsys)["csv"]
    assert not re.search(r"22\.50?|0?\.225", text), "the mean of all five"


def test_an_edited_metric_of_the_same_version(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.trained(0)
    lab.edit("evaluator")
    lab.trained(0, 1)
    own = lab.of("turned")
    assert {record.metrics["Turned@1"] for record in own} == {BEFORE, AFTER}
    found = surfaces(lab, capsys)
    assert not any(MEAN.search(text) for text in found.values())
    assert "other code of Turned@1" in " ".join(found["table"].split())
    assert told(capsys, "rescore", *lab.places)[0] == 0
    assert [record.metrics["Turned@1"] for record in lab.of("turned")] == [AFTER, AFTER]
    board = xb.leaderboard("fake-20", variants=True, store=lab.store.root)
    assert [row.seeds for group in board.groups for row in group.rows if row.method == "turned"] == [(0, 1)]


def test_an_edited_dataset_of_the_same_name(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Its trials stand in a table of their own."""
    lab.trained(0)
    dataset, text = lab.root / "site" / "xmcbench_fakes.py", "np.arange(NUM_TEST) % NUM_LABELS"
    dataset.write_text(dataset.read_text().replace(text, "(np.arange(NUM_TEST) + (np.arange(NUM_TEST) < 20)) % 20"))
    forget()
    lab.trained(1)
    assert len({record.trial.dataset_hash for record in lab.of("turned")}) == 2
    found = surfaces(lab, capsys)
    values = [record.metrics["P@1"] for record in lab.of("turned")]
    assert values[0] != values[1]
    mean = re.compile(rf"(?<![\d.]){100 * sum(values) / 2:.2f}(?!\d)")
    assert not any(mean.search(text) for text in found.values())
    assert len(json.loads(found["json"])["groups"]) == 2


def test_a_store_merged_from_two_machines(
    lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two machines ran one suite with two codes, and their folders of trials were copied together."""
    lab.trained(0, 1, store="elsewhere")
    lab.edit("method")
    lab.trained(1, 2)
    shutil.copytree(lab.root / "elsewhere" / "trials", lab.store.root / "trials", dirs_exist_ok=True)
    assert_kept_apart(lab, capsys, caplog, "now code")


def test_files_of_two_machines_in_one_trial(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that ended half-way: the record is one machine's, the predictions are the other's."""
    lab.trained(0, store="elsewhere")
    lab.edit("method")
    (own, *_) = [record for record in lab.trained(0) if record.trial.label == "turned"]
    for name in ("predictions.npz", "resampled.safetensors"):
        shutil.copy(Store(lab.root / "elsewhere").directory(own.key) / name, lab.store.directory(own.key) / name)
    code, _, errors = told(capsys, "rescore", *lab.places)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert f"{own.key}/predictions.npz: damaged, or of another trial" in errors
    assert [record.metrics["P@1"] for record in lab.of("turned")] == [AFTER]


def test_the_model_of_another_trial_in_a_trials_folder(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.trained(0)
    lab.edit("method")
    lab.trained(1)
    first, second = lab.of("turned")
    folder = lab.store.directory(second.key) / "model"
    shutil.rmtree(folder)
    shutil.copytree(lab.store.directory(first.key) / "model", folder)
    for command in (
        ("predict", second.key, "--text", "test 1"),
        ("serve", second.key, "--port", "0"),
        ("hub", "push", second.key, "me/model"),
    ):
        extra = lab.places if command[0] != "hub" else lab.places[:2]
        code, output, errors = told(capsys, *command, *extra)
        assert (code, output) == (2, ""), command
        assert f"the record of {second.key} says" in errors, command


def test_records_of_an_older_xmcbench_beside_new_ones(
    lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade: records without the form that digests have now."""
    lab.trained(0)
    for old in lab.store.records():
        plugin = {name: value for name, value in old.provenance["plugin"].items() if name != "form"}
        lab.store.write_record(old.model_copy(update={"provenance": {**old.provenance, "plugin": plugin}}))
    lab.edit("method")
    lab.trained(0, 1)
    assert_kept_apart(lab, capsys, caplog, "code in an older form of 1 trial, now code")


def test_a_fusion_whose_part_was_trained_again(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.trained(0)
    assert told(capsys, "fuse", "turned", "other", *lab.places)[0] == 0
    assert "trained again" not in surfaces(lab, capsys)["table"]
    lab.edit("method")
    lab.trained(0, changed=True)
    found = surfaces(lab, capsys)
    for where in ("table", "markdown", "latex", "csv", "json", "page", "Python"):
        assert "fused before turned" in " ".join(found[where].replace("\\n", " ").split()), where
    assert told(capsys, "fuse", "turned", "other", *lab.places)[0] == 0
    board = xb.leaderboard("fake-20", variants=True, store=lab.store.root)
    fusions = [row for group in board.groups for row in group.rows if row.plugin == "fused"]
    assert sorted(bool(row.older) for row in fusions) == [False, True]
