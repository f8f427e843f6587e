"""What a teacher will be asked, and what that costs, is said before a trial runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from commands import told

from xmcbench.errors import XMCBenchError
from xmcbench.teachers import Answers
from xmcbench.teachers.costs import Price
from xmcbench_plugins.teachers.database import JudgementStore
from xmcbench_plugins.teachers.endpoint import Endpoint

TEACHER = '{name: openai, model: m, prompt: "D {document} L {label}", base_url: "http://127.0.0.1:9/v1"}'
LMTX = f"{{method: lmtx, teacher: {TEACHER}, documents: 20, development: 10, cycles: 2, shortlist: 5}}"


def planned(capsys: pytest.CaptureFixture[str], root: Path, methods: str, *options: str, command: str = "plan") -> str:
    suite = root / "suite.yaml"
    suite.write_text(
        "name: mine\ntrack: zero-shot\ndatasets: [catalog-50]\nbudget: {epochs: 1}\nseeds: [0, 1]\n"
        f"encoder: nano\nmethods:\n  mine: {methods}\n"
    )
    _, _, errors = told(capsys, command, suite, "--store", root / "results", *options)
    return "\n".join(line for line in errors.splitlines() if " asks " in line)


def answered(root: Path) -> None:
    """Put three answers of the teacher into a store: of 100 tokens of a prompt and 40 of an answer each."""
    config = {"name": "openai", "model": "m", "prompt": "D {document} L {label}"}
    teacher, store = Endpoint(Endpoint.Config.model_validate(config)), JudgementStore(root / "results")
    number, texts = store.teacher(teacher.title, teacher.identity(), teacher.template), store.texts(["a", "b", "c"])
    kinds, sure = np.ones(3, np.int8), np.ones(3, np.float32)
    store.add(number, texts, texts, Answers(np.arange(3), kinds, sure, np.full(3, 100), np.full(3, 40)))
    store.close()


def test_calls_tokens_and_money_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two cycles of 20 documents with five labels, and of ten development documents: 220 calls."""
    line = planned(capsys, tmp_path, LMTX)
    assert line.startswith(
        "note: mine on catalog-50: asks openai m at most 220 times in each of 2 trials (440 in all): "
    )
    assert line.endswith("of answers, thoughts not counted")
    assert not (tmp_path / "results").exists()
    answered(tmp_path)
    line = planned(capsys, tmp_path, LMTX, "--teacher-price", "10,100")
    tokens = "about 44,000 tokens of prompts and 17,600 of answers; which cost about 2.20 at 10 and 100 a million"
    assert line.partition(": asks")[2].partition(": ")[2] == (
        f"{tokens}; of its answers the store holds 3, which are not asked for again"
    )
    assert "asks openai m at most 220 times" in planned(capsys, tmp_path, LMTX, "--dry-run", command="run")


def test_a_budget_and_several_labels_in_a_prompt_lower_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capped = LMTX[:-1] + ", budget: {epochs: 1, teacher_calls: 7}}"
    assert "at most 7 times in each of 2 trials (14 in all)" in planned(capsys, tmp_path, capped)
    several = LMTX.replace('"D {document} L {label}"', '"D {document} L {labels}"')
    one, many = (
        int(re.search(r"about ([\d,]+) tokens", planned(capsys, tmp_path, methods))[1].replace(",", ""))  # type: ignore[index]
        for methods in (LMTX, several)
    )
    assert many < 0.7 * one
    writes = f"{{method: infer-retrieve-rank, teacher: {TEACHER}, documents: 30, shortlist: 4}}"
    assert "at most 150 times" in planned(capsys, tmp_path, writes)


def test_what_this_machine_lacks_for_a_teacher_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    suite, hosted = tmp_path / "suite.yaml", LMTX.replace(', base_url: "http://127.0.0.1:9/v1"', "")
    for methods, told_of in (
        (LMTX, ""),
        (
            hosted,
            "fails: teacher openai m: expected a key in the environment variable OPENAI_API_KEY, or base_url, the",
        ),
    ):
        planned(capsys, tmp_path, methods)
        code, _, errors = told(capsys, "run", suite, "--store", tmp_path / "results", "--dry-run")
        assert code == 0
        assert told_of in errors
        assert ("fails: " in errors) == bool(told_of)
    broken = f"{{method: lmtx, teacher: {{name: transformers, model: {tmp_path / 'none'}}}, documents: 20}}"
    planned(capsys, tmp_path, broken)
    code, output, errors = told(capsys, "run", suite, "--store", tmp_path / "results", "--dry-run")
    assert (code, output) == (2, "")
    assert "none': no such folder" in errors


def test_a_simulated_teacher_costs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert planned(capsys, tmp_path, "{method: lmtx, teacher: annotated}") == ""


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "a,b", "-1,2", "nan,1", "inf,1"])
def test_what_is_no_price_is_one_line(text: str) -> None:
    with pytest.raises(XMCBenchError, match=r"^--teacher-price: found '.*', expected two prices of a million tokens"):
        Price.parse(text)
