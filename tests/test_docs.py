"""The documentation is true: its examples run, its tables are complete, what it points at is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call
from fakes import install
from fakes.bench import Bench, Heard
from fitting import share_memorised

import xmcbench
from xmcbench import DualEncoder, EmbeddingMethod, Method, teachers
from xmcbench.data import load
from xmcbench.evaluation import drop_ignored
from xmcbench.plugins import hookspecs
from xmcbench.plugins.hookspecs import GROUP, HOOKS
from xmcbench.plugins.registry import ONLY, STRICT, Registry, registry
from xmcbench.runs.progress import tracked
from xmcbench.suite.suite import load_suite
from xmcbench.trial.record import Status

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "plugins").rglob("*.md")]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), flags=re.DOTALL | re.MULTILINE)


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next of any level, without fenced blocks (# begins no heading there)."""
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.DOTALL | re.MULTILINE)
    return re.split(r"^#+ ", re.split(rf"^#+ {re.escape(title)}$", prose, flags=re.MULTILINE)[1], flags=re.M)[0]


def rows(table: str) -> dict[str, list[str]]:
    """The rows of all tables in a text by their first cell, which is code."""
    found = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            first, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            found[first.strip("`")] = rest
    return found


# Examples ---------------------------------------------------------------------------------------------------------


def plugins(page: str) -> list[str]:
    """The plugins of a page, each a whole module."""
    return [block for block in blocks(page, "python") if "@hookimpl" in block]


PLUGINS = [
    (page, number)
    for page in ("README.md", "docs/tutorial-method.md", "docs/writing-a-plugin.md", "docs/teachers.md")
    for number in range(len(plugins(page)))
]


@pytest.fixture
def example(request: pytest.FixtureRequest, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """What one plugin of the documentation registers, installed as its author would."""
    page, number = request.param
    site = bench.root / "site"
    code = plugins(page)[number]
    (site / "documented.py").write_text(code)
    group = next((f"xmcbench.{kind}" for kind in ("commands", "results") if f"register_{kind}" in code), "xmcbench")
    install(site, "documented", {"documented": "documented"}, group=group)
    monkeypatch.setenv(ONLY, "xmcbench-fakes,documented")
    registry.cache_clear()
    yield Registry(strict=True)
    sys.modules.pop("documented", None)
    registry.cache_clear()


def check_method(method: type[Method], bench: Bench) -> None:
    """It can be run, and what it saves predicts as it does."""
    settings: dict[str, Any] = {"method": method.name}
    if "service" in method.Config.model_fields:
        settings["service"] = "words"
    if issubclass(method, DualEncoder):
        settings["encoder"] = "tiny"
    if issubclass(method, EmbeddingMethod):
        settings["batch_size"] = 8
    suite = bench.suite({"documented": settings}, budget={"steps": 2})
    (record,) = bench.run(suite, debug=True).values()
    assert record.status is Status.OK
    kept, _ = bench.store.predictions(record)
    again = method(method.Config.model_validate(record.trial.config))
    again.load(bench.store.directory(record.key) / "model")
    dataset = load("fake-20", bench.root / "data", bench.root / "cache")
    predicted = drop_ignored(again.predict(dataset.test.texts, kept.k), dataset.ignore_test, kept.k)
    np.testing.assert_allclose(predicted.scores, kept.scores, rtol=1e-5, atol=1e-6)


def check_sampler(sampler: Any, bench: Bench) -> None:
    """Its pools are sorted and without repeats, hold a positive of each query, and can be had again."""
    train = load("fake-20", bench.root / "data", bench.root / "cache").training_data()
    first, second = (sampler(train, batch_size=7, seed=3).batch(1, 2) for _ in range(2))
    assert np.all(np.diff(first.label_ids) > 0)
    assert np.array_equal(first.label_ids, second.label_ids)
    assert set(first.positives.rows_P.tolist()) == set(range(len(first.query_ids)))


def check_evaluator(evaluator: Any, bench: Bench) -> None:
    """A suite may ask for it, with its parameters; the record says whether its lowest value is the best."""
    lower = getattr(evaluator, "lower_is_better", False)
    name = f"{evaluator.name}:least=1" if lower else evaluator.name
    (record,) = bench.run(bench.suite(["fake-ok"], metrics=["P@1", f"{name}@1"]), debug=True).values()
    hits = 1 - record.metrics[f"{name}@1"] if lower else record.metrics[f"{name}@1"]
    assert hits == pytest.approx(record.metrics["P@1"])
    assert record.lower_is_better == ((name,) if lower else ())


def check_dataset(source: Any, bench: Bench) -> None:
    """A suite may name it."""
    (record,) = bench.run(bench.suite(["fake-ok"], datasets=[source.name]), debug=True).values()
    assert record.status is Status.OK
    assert 0 < record.metrics["R@100"] <= 1


def check_teacher(teacher: Any, bench: Bench) -> None:
    """A method may ask it; its answers are kept."""
    methods = {"asker": {"method": "fake-asker", "teacher": teacher.name}}
    (record,) = bench.run(bench.suite(methods, track="zero-shot"), debug=True).values()
    assert record.status is Status.OK
    assert record.teacher == teacher.name
    assert record.spent["teacher_calls"] == 30 * 20


def check_tracker(tracker: Any, bench: Bench) -> None:
    """It is told how a trial ended."""
    runner = bench.runner(bench.suite(["fake-ok"]), debug=True)
    with tracked(Heard(), [tracker(bench.store.root)]) as told:
        (record,) = runner.run(runner.plan(), told)
    assert (bench.store.root / "diary.txt").read_text() == f"{record.ended} fake-20/ok: ok\n"


def check_judge(maker: Any, bench: Bench) -> None:
    """A teacher that names it is asked through it."""
    documented = bench.root / "site" / "documented.py"
    documented.write_text(documented.read_text() + ASKED_DIRECTLY)
    sys.modules.pop("documented", None)
    registry.cache_clear()
    methods = {"asker": {"method": "fake-asker", "teacher": "yes"}}
    (record,) = bench.run(bench.suite(methods, track="zero-shot"), debug=True).values()
    assert record.status is Status.OK
    assert (record.teacher, record.spent["teacher_calls"]) == ("yes", 30 * 20)
    assert registry().thing("teacher", "yes").judge == maker.name


ASKED_DIRECTLY = """

class Yes(teachers.Teacher):
    name, summary, judge = "yes", "says yes", "direct"

    def ask(self, pairs):
        ones, nothing = np.ones(len(pairs)), np.zeros(len(pairs), np.int64)
        yield teachers.Answers(np.arange(len(pairs)), ones.astype(np.int8), ones, nothing, nothing)


@hookimpl
def register_teachers(register):
    register(Yes)
"""


def check_command(_: Any, bench: Bench) -> None:
    """The command line has it, and `--help` shows it."""
    shown = subprocess.run([sys.executable, "-m", "xmcbench", "longest", "a", "long"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "long\n"), shown.stderr
    listed = subprocess.run([sys.executable, "-m", "xmcbench", "--help"], capture_output=True, text=True)
    assert "Print the longest text." in listed.stdout
    assert bench.root.is_dir()


def check_executor(executor: Any, bench: Bench) -> None:
    """`run` uses it, a trial that fails has a record, and results are those of this machine's executor."""
    records = bench.run(bench.suite(["fake-ok", "fake-crash"]), executor=executor())
    assert {label: record.status for label, record in records.items()} == {"ok": Status.OK, "crash": Status.ERROR}
    assert records["ok"].metrics == bench.run(bench.suite(["fake-ok"]), debug=True, retry=True)["ok"].metrics


def check_importer(importer: Any, bench: Bench) -> None:
    """A folder becomes a dataset, which a suite may name."""
    folder = bench.root / "lines"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"{part}.tsv").write_text("a red car\tcar,red\na green tree\ttree\n" * 5)
    assert call("datasets", "import", folder, "--format", importer.name, "--data", bench.root / "data") == 0
    (record,) = bench.run(bench.suite(["fake-ok"], datasets=["lines"]), debug=True).values()
    assert record.status is Status.OK


def check_format(format: Any, bench: Bench) -> None:
    """`leaderboard` writes it, to the terminal and to a file."""
    bench.run(bench.suite(["fake-ok"]), debug=True)
    output = bench.root / "bullets.md"
    arguments = ["leaderboard", "--store", bench.root / "results", "--dataset", "fake-20", "--format", format.name]
    assert call(*arguments, "-o", output) == 0
    assert output.read_text() == "- fake-20: ok\n"


def check_result(_: Any, bench: Bench) -> None:
    """`leaderboard` shows its row among those of papers, and knows its method."""
    table = xmcbench.leaderboard("eurlex-4k", source="published", store=bench.root / "nowhere")
    (row,) = [row for row in table.groups[0].rows if row.method == "Wide"]
    assert (row.printed, row.named.family, row.facts["paper"]) == ({"P@1": "81.37"}, "linear", "lee-2027 Table 1")
    assert len(table.groups[0].rows) > 1


@pytest.mark.parametrize("example", PLUGINS, indirect=True, ids=[f"{page}-{number}" for page, number in PLUGINS])
def test_every_plugin_in_the_documentation_works(example: Registry, bench: Bench) -> None:
    checks = {
        "method": check_method,
        "sampler": check_sampler,
        "evaluator": check_evaluator,
        "dataset": check_dataset,
        "teacher": check_teacher,
        "judge": check_judge,
        "tracker": check_tracker,
        "command": check_command,
        "executor": check_executor,
        "importer": check_importer,
        "format": check_format,
        "result": check_result,
    }
    checked = 0
    for kind in HOOKS:
        for registered in example.all(kind):
            if registered.origin.distribution == "documented":
                checks[kind](registered.thing, bench)
                checked += 1
    assert checked == 1


def test_the_classifier_of_the_documentation_learns_at_its_default_temperature(tmp_path: Path) -> None:
    (block,) = [block for block in plugins("docs/writing-a-plugin.md") if "class Classifier(" in block]
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile(block, "documented", "exec", dont_inherit=True), namespace)
    method = namespace["Classifier"]

    def made(encoder: str) -> Method:
        own = {"name": encoder, "hidden_dropout": 0.0}
        return method(method.Config(encoder=own, batch_size=60, learning_rate=3e-3, max_query_length=8))

    assert share_memorised(made, tmp_path, {"steps": 60}, pairs=60) > 0.9


def test_the_python_of_the_readme_calls_public_names() -> None:
    (block,) = [block for block in blocks("README.md", "python") if "@hookimpl" not in block]
    compile(block, "README.md", "exec")
    called = set(re.findall(r"xb\.(\w+)", block))
    assert called == {"compare", "leaderboard", "load", "predict", "run", "score", "show"}
    assert called <= set(xmcbench.__all__)


def test_there_is_an_example_of_every_hook() -> None:
    documented = "".join(blocks("docs/writing-a-plugin.md", "python"))
    for hook in HOOKS.values():
        assert f"@hookimpl\ndef {hook}(register):" in documented


def test_the_notebook_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    for cell in json.loads(text("docs/tutorial-method.ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
            assert capsys.readouterr().out == "".join(output["text"] for output in cell["outputs"])


SUITES = [
    pytest.param(block, id=f"{page}-{number}")
    for page in (path.relative_to(ROOT).as_posix() for path in PAGES)
    for number, block in enumerate(blocks(page, "yaml"))
    if block.startswith("name:")
]


@pytest.mark.parametrize("block", SUITES)
def test_every_suite_in_the_documentation_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(block)
    assert load_suite(tmp_path / "suite.yaml", tmp_path).variants


# Tables -----------------------------------------------------------------------------------------------------------


def test_every_hook_and_variable_is_explained() -> None:
    page = text("docs/writing-a-plugin.md")
    hooks = [name for name in vars(hookspecs) if name.startswith("register_")]
    assert sorted(hooks) == sorted(HOOKS.values())
    for name in (*hooks, f"`{GROUP}`", STRICT, ONLY, *(("`fit`", "`predict`", "`save`", "`load`"))):
        assert name in page, name


def test_every_prompt_is_documented() -> None:
    assert set(rows(section("docs/teachers.md", "Prompts"))) == set(teachers.PROMPTS)


# References -------------------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if fragment:
            linked = path.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", linked, flags=re.MULTILINE)
            assert fragment in map(anchor, headings) or f'id="{fragment}"' in linked, target


@pytest.mark.parametrize(
    "words",
    ["4 GPUs", "resume", "threshold", "submit", "compare", "Hugging Face encoder", "operation", "cite", "add label"],
)
def test_what_readers_search_for_is_in_a_heading(words: str) -> None:
    """The site's search ranks a word in a heading far above one in a text."""
    headings = [
        line.lower() for page in (ROOT / "docs").glob("*.md") for line in re.findall(r"^#+ .*$", text(page), re.M)
    ]
    assert [line for line in headings if all(word.lower() in line for word in words.split())]


def prose(page: Path) -> list[str]:
    """The words of a page that a reader reads in full: no code, tables, comments or addresses; none if generated."""
    content = page.read_text(encoding="utf-8")
    if re.match(r"<!-- (Made|Written) by ", content):
        return []
    content = re.sub(r"^```.*?^```$|^\|.*?$|<!--.*?-->|(?<=\])\([^)]*\)", "", content, flags=re.DOTALL | re.MULTILINE)
    return [word for word in content.split() if re.search(r"\w", word)]


def test_the_documents_of_users_are_short_enough_to_be_read() -> None:
    for_users = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - {ROOT / "docs/architecture.md"}
    words = {page.name: len(prose(page)) for page in for_users}
    assert 10_000 < sum(words.values()) <= 18_000, words
    assert len(prose(ROOT / "docs/findings.md")) == 0, "a command writes it"


def test_every_test_and_module_that_the_architecture_names_is_there() -> None:
    page = text("docs/architecture.md")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert named
    for file, test in named:
        assert f"def {test}(" in text(file), f"{file}::{test}"
    for module in re.findall(r"`((?:xmcbench|plugins|suites)/[\w/.]*)`", page):
        assert (ROOT / module).exists(), module


def test_every_test_that_security_names_is_there() -> None:
    """A promise names its test by its place, those after the first in the same folder by their name alone."""
    text, folder = (ROOT / "docs" / "security.md").read_text(), Path()
    names = re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", text)
    assert names
    for name in names:
        folder = Path(name).parent if "/" in name else folder
        assert (ROOT / folder / Path(name).name).is_file(), name
    promises = text.partition("| --- | --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    assert all(re.search(r"test_\w+\.py`", promise) for promise in promises)
