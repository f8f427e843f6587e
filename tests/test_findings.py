"""README, page and documents say what accepted records say: files are made of templates, which hold no number."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import findings
import jinja2
import pytest
from documents import TEMPLATES, Statements, flowed
from hand_written import typed
from PIL import Image
from studies import EQUAL, STUDIES, Board, Boards, Gap, Study
from words import clauses, converged, relation_of, says

import xmcbench as xb
from xmcbench.errors import XMCBenchError
from xmcbench.evaluation.significance import Estimate, Relation
from xmcbench.reporting.make_rows import newest_versions
from xmcbench.trial.store import Store
from xmcbench_plugins.board.results import ACCEPTED

ROOT = Path(__file__).parents[1]
MAKE = "run python benchmarks/findings.py"


@pytest.fixture(scope="module")
def boards() -> Boards:
    return Boards(ACCEPTED)


def gap(value: float, error: float, significant: bool = False, place: str = "here") -> Gap:
    return Gap("ours", "theirs", "P@5", place, Estimate(value, error), significant)


# What the project holds ---------------------------------------------------------------------------------------------


def test_every_document_is_what_the_accepted_records_say(boards: Boards) -> None:
    files, problems = findings.made(boards)
    assert problems == []
    for name, text in files.items():
        assert text == (ROOT / name).read_text(encoding="utf-8"), f"{name}: {MAKE}"


def test_every_picture_is_what_the_accepted_records_say(boards: Boards, tmp_path: Path) -> None:
    for path in findings.draw(boards, tmp_path):
        assert drawn(path) == drawn(findings.PICTURES / path.name), f"{path.name}: {MAKE}"


@pytest.mark.long
def test_the_picture_of_the_page_shows_what_the_page_shows(tmp_path: Path) -> None:
    picture = pytest.importorskip("page_picture", reason="needs playwright")
    board = xb.leaderboard(whole=True, store=tmp_path / "store", data=tmp_path / "data")
    assert Image.open(picture.PICTURE).text[picture.SAYS] == picture.shown(board.table), MAKE


def drawn(path: Path) -> list[tuple[str, ...]]:
    """What a figure says: its texts, and its lines and marks to a point; no shape of a letter."""
    found: list[tuple[str, ...]] = [("text", text.strip()) for text in re.findall(r"<!--(.*?)-->", path.read_text())]
    assert found, "matplotlib writes each text as a comment"
    for group in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}g"):
        if group.get("id", "").startswith("line2d"):
            for own in group.iter():
                numbers = [*re.findall(r"-?\d+\.?\d*", own.get("d", "")), own.get("x", "0"), own.get("y", "0")]
                found.append((own.get("style", ""), *(f"{float(number):.0f}" for number in numbers)))
    return found


def test_the_first_line_of_the_readme_is_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Version {project['version']} · {project['license']} · Python {python} or later ·" in " ".join(
        readme.split()
    )


def test_rows_that_test_results_suggested_are_chosen_by_held_out_queries_or_named_so() -> None:
    """What was found names no such row: only `gaps` and `leaders` come to them, which choose on held-out queries."""
    suggested = {label for study in STUDIES.values() for label in study.suggested}
    assert suggested
    for name in ("answers.jinja", "found.md.jinja"):
        source = (TEMPLATES / name).read_text(encoding="utf-8")
        assert not [label for label in suggested if f'"{label}"' in source]


def test_converged_is_said_of_a_run_of_twice_the_budget_that_changed_little(boards: Boards) -> None:
    """The margin of a word is that of `equal`; a change that is significant is the other side."""
    shorter, longer = boards["records"]["ova"], boards.suite("one-vs-all-longer", "lf-tibkat-15k")["ova"]
    assert converged(longer, shorter, "P@5").startswith("has converged by P@5: 4 times the budget ")
    assert converged(longer, shorter, "PSP@5").startswith("has not converged by PSP@5: 4 times the budget ")
    with pytest.raises(XMCBenchError, match="expected 2"):
        converged(shorter, longer, "P@5")
    assert list(typed("It has converged and its curve is flat."))


# What may not stand in a template ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problems"),
    [
        ("It has 42.4 of P@5.", ["t:1: '42.4': a number without an expression"]),
        ("a\n\nThe third is three points ahead", ["'third'", "'three'"]),
        ("It {{ 'beats' }} all", ["'beats': a value that no record has"]),
        ("{{ 'beats' if a else 'trails' }}{% set own = 'beats' %}", ["'beats'", "'trails'", "'beats'"]),
        ("{{ 42 }}", ["42: a value that no record has"]),
        ("{{ own | says('beats by 3 points') }}", ["'beats by 3 points': a number in an expression"]),
        ("{% set own = 37.8 %}{{ own }}", ["37.8: a number in an expression"]),
        ("PRIME equals Parabel and\nstays below PLT", ["t:1: 'equals'", "t:2: 'below'"]),
        ("{{ titles['a-1k']['P@5'] }} of P@5 and macro-F1@5, `top 5` ([3](x-4.md)) \"equals\"", ["'3'"]),
        ("{{ broken", ["t:1: "]),
    ],
)
def test_a_number_or_a_comparison_without_an_expression_is_a_line(source: str, problems: list[str]) -> None:
    found = list(typed(source, "t"))
    assert len(found) == len(problems)
    for line, part in zip(found, problems, strict=True):
        assert part in line
        assert "\n" not in line


def test_the_templates_of_before_would_have_failed() -> None:
    """Sentences that stood in the README, each of them wrong."""
    for sentence in (
        "Alone, the best dual encoder stays 1.8 below it on packages",
        "Of encoders alone, hard negatives lead in the end (P@5 37.8)",
        "Encoders have the same budget of operations: equal",
        "matching label words has 32.0, the trees that lead P@5 have 10 to 16",
    ):
        assert list(typed(sentence))


# Words of comparison -------------------------------------------------------------------------------------------------


def test_each_word_holds_on_one_side_of_its_rule() -> None:
    above, below = gap(0.02, 0.001, significant=True), gap(-0.02, 0.001, significant=True)
    equal, open_ = gap(0.001, 0.002), gap(0.02, 0.03)
    assert [own.relation for own in (above, below, equal, open_)] == list(Relation)
    assert says(above, "beats", "trails") == "beats"
    assert says(below, "beats", "trails") == "trails"
    assert says(equal, "beats", "equals") == f"equals (within {equal.margin} points)"
    for own, phrase in ((below, "beats"), (open_, "beats"), (open_, "equals"), (equal, "beats"), (above, "equals")):
        with pytest.raises(XMCBenchError, match=rf"ours is {re.escape(str(own))} of P@5 over theirs .* not '{phrase}'"):
            says(own, phrase)


def test_equal_needs_a_margin_that_the_tests_for_equivalence_reach() -> None:
    at = EQUAL / 1.6449
    assert gap(0.0, 0.99 * at).relation is Relation.EQUAL
    assert gap(0.0, 1.01 * at).relation is Relation.UNDECIDED
    assert float(gap(0.0, 0.99 * at).margin) / 100 >= gap(0.0, 0.99 * at).found.equivalence_margin


def test_clauses_follow_the_records() -> None:
    phrases = ("beats it", "equals it", "trails it")
    gaps = [gap(0.02, 0.001, True, "a"), gap(0.03, 0.001, True, "b"), gap(-0.01, 0.001, True, "c")]
    assert clauses(gaps, *phrases) == "beats it on a and b (by 2.0 and 3.0 points) and trails it on c (by 1.0 points)"
    everywhere = [gap(0.02, 0.001, True, name) for name in "abc"]
    assert clauses(everywhere, *phrases) == "beats it on all three datasets (by 2.0, 2.0 and 2.0 points)"
    with pytest.raises(XMCBenchError, match="undecided: not 'beats it'"):
        clauses([*gaps, gap(0.02, 0.03)], *phrases)


@pytest.mark.parametrize("phrase", ["does not beat", "is fine", "beats or trails"])
def test_a_phrase_has_one_word_of_comparison(phrase: str) -> None:
    with pytest.raises(XMCBenchError, match="expected one word of comparison"):
        relation_of(phrase)


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('\n{{ titles["prme"]["P@5"] }}', r":2: titles: unknown row 'prme' \(did you mean 'prime'"),
        ('{{ titles["prime"]["P@55"] }}', r":1: titles/prime: unknown metric 'P@55' \(did you mean 'P@5'"),
        ('{{ titles.best("P@5", "tres").name }}', r":1: titles: unknown group 'tres' \(did you mean 'trees'"),
        ('{{ titles["prime"].setting("batch_sise") }}', r":1: titles/prime: unknown setting 'batch_sise'"),
        ('{{ suite("evidense", "d")["a"] }}', r":1: unknown suite 'evidense' \(did you mean 'evidence'"),
        ('{{ titels["prime"] }}', r":1: 'titels' is undefined \(did you mean 'titles'"),
        ('{{ titles["prime"].over("parabel", "P@5") | says("equals", "beats") }}', r":1: prime is -.* not 'equals' or"),
        ('{{ titles["rae"] | best("the best", "P@5") }}', r"has the highest P@5 \(titles\), rae .*: not 'the best'"),
        ("{% if %}", ":1: Expected an expression"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_template_and_line(boards: Boards, source: str, problem: str) -> None:
    statements = Statements(boards)
    statements.loader = jinja2.DictLoader({"t.jinja": source})
    statements.made("t.jinja")
    (line,) = statements.problems
    assert re.search(problem, line), line
    assert line.startswith("benchmarks/templates/t.jinja")
    assert "\n" not in line


def test_all_mistakes_of_a_document_are_told_at_once(boards: Boards) -> None:
    statements = Statements(boards)
    wrong = (
        '{{ titles["a"]["P@5"] | lower }}\n{{ titles["prime"].over("b", "P@5") | says("beats") }}\n{{ gnd["c"].steps }}'
    )
    statements.loader = jinja2.DictLoader({"t.jinja": wrong})
    statements.made("t.jinja")
    assert [line.split(":")[1] for line in statements.problems] == ["1", "2", "3"]


def test_nothing_is_written_where_a_sentence_no_longer_holds(
    boards: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    templates = tmp_path / "documents"
    shutil.copytree(TEMPLATES, templates)
    found = templates / "found.md.jinja"
    added = '\n{{ titles["prime"].over("parabel", "P@5") | says("beats") }} Parabel'
    found.write_text(found.read_text() + added)
    monkeypatch.setattr("documents.TEMPLATES", templates)
    monkeypatch.setattr("findings.TEMPLATES", templates)
    monkeypatch.setattr("findings.Statements", lambda boards: Statements(boards, templates))
    monkeypatch.setattr("findings.Boards", lambda _: boards)
    monkeypatch.setattr("findings.write", lambda _: pytest.fail("written"))
    monkeypatch.setattr("sys.argv", ["findings.py"])
    with pytest.raises(SystemExit, match="1 problems; nothing was written"):
        findings.main()
    assert re.search(r"found\.md\.jinja:\d+: prime is -.* of P@5 over parabel on titles", capsys.readouterr().err)


def test_trials_of_older_code_are_marked_and_never_averaged_with_newer_ones(boards: Boards) -> None:
    study = Study("own", "evidence", "lf-tate-titles-16k", "titles")
    records = [
        record for record in boards.records if record.suite == "evidence" and record.trial.label in ("plt", "prime")
    ]
    newer = []
    for record in records:
        if record.trial.label == "prime":
            raised = {**record.trial.versions, "method": record.trial.versions["method"] + 1}
            newer.append(record.model_copy(update={"trial": record.trial.changed(versions=raised)}))
    own = Boards.__new__(Boards)
    own.store, own._read = Store(ACCEPTED), {}
    for kept, older in ((records, True), ([*records, *newer], False)):
        own.records = kept
        own.newest = newest_versions([*records, *newer])
        own._read.clear()
        board = own[study]
        assert board["prime"].seeds == len({one.trial.seed for one in records if one.trial.label == "prime"})
        assert bool(board["prime"].older) is older
        assert [line for line in own.older() if line.startswith("own/prime: older code")] == own.older()
        assert len(own.older()) == older


def test_sentences_of_a_suite_that_is_accepted_later_are_ready(boards: Boards) -> None:
    """Whatever the trainings without a limit on epochs find: here they end as the rows with it."""
    records = [own for own in boards.records if own.suite not in ("no-cap", "no-cap-tibkat")]
    known, without = Boards(ACCEPTED), Boards(ACCEPTED)
    known.records, without.records = list(records), records
    for suite, of in (("no-cap", "evidence"), ("no-cap-tibkat", "evidence-tibkat")):
        taken = [own for own in records if own.suite == of and own.trial.label in ("dexml-in-batch", "dpr", "ngame")]
        known.records += [own.model_copy(update={"suite": suite}) for own in taken]
    files, problems = findings.made(known)
    assert problems == []
    assert re.search(
        r"NGAME is equal \(within 0.00 points\) in P@5 .* is below hard", " ".join(files["docs/findings.md"].split())
    )
    assert (
        "| NGAME, all operations against its row with the limit | the small library set | +0.0 ("
        in files["docs/results.md"]
    )
    assert "with the limit" not in findings.made(without)[0]["docs/results.md"]


@pytest.mark.parametrize("raised", [{"method": 99}, {"charges": 2}, {"a new part": 1}])
def test_of_two_codes_the_newer_one_is_read(boards: Boards, raised: dict[str, int]) -> None:
    study = STUDIES["titles"]
    old = [own for own in boards.records if own.suite == study.suite and own.trial.label == "prime"]
    new = [
        own.model_copy(update={"trial": own.trial.changed(versions={**own.trial.versions, **raised})}) for own in old
    ]
    for records in ([*old, *new], [*new, *old]):
        read = Board(study, boards.store, records, boards.newest)["prime"].records
        assert {own.trial.but_seed for own in read} == {own.trial.but_seed for own in new}
        assert len(read) == len(old)


# Layout --------------------------------------------------------------------------------------------------------------


def test_paragraphs_are_filled_and_the_rest_stays() -> None:
    long = "word " * 40
    text = f"# T\n\n{long}\nend\n- {long}\n  end\n- b\n\n\n| a | b |\n| - | - |\n\n```sh\na\nb\n```\n\n# U\n"
    made = flowed(text)
    assert max(map(len, made.splitlines())) <= 120
    assert "word end\n- word" in made
    assert "\n  " in made
    assert made.endswith("- b\n\n| a | b |\n| - | - |\n\n```sh\na\nb\n```\n\n# U\n")
    assert flowed(made) == made
