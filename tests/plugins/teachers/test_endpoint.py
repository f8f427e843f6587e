"""The teacher behind an endpoint: whatever befalls the server, no judgement is lost and none is asked for twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from xmcbench.teachers import NO, UNPARSED, YES, TeacherError
from xmcbench.teachers.prompts import first_words
from xmcbench.trial.budget import Budget
from xmcbench_plugins.teachers.cached_judge import FIRST
from xmcbench_plugins.teachers.database import JudgementStore
from xmcbench_plugins.teachers.endpoint import Endpoint, _divided

from .desk import ANSWERED, DOCUMENTS, LABELS, Desk, every_pair
from .server import PROMPT_ONE, PROMPT_SEVERAL, Server

SECRET = "sk-do-not-tell-0123456789"
EACH_ONCE = Counter({(document, label): 1 for document in DOCUMENTS[:8] for label in LABELS})
PAIRS = every_pair(8)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def endpoint(server: Server, **settings: Any) -> Endpoint:
    told = {"name": "openai", "model": "m", "base_url": server.url, "prompt": PROMPT_ONE, "concurrency": 4} | settings
    return Endpoint(Endpoint.Config.model_validate(told))


@pytest.mark.parametrize("prompt", [PROMPT_ONE, PROMPT_SEVERAL])
def test_answers_tokens_and_calls_are_those_of_the_server(server: Server, tmp_path: Path, prompt: str) -> None:
    server.start()
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, prompt=prompt, labels_per_prompt=3))(*PAIRS)
    assert np.array_equal(found.answers, desk.expected(*PAIRS))
    assert np.array_equal(found.confidence, (found.answers != UNPARSED).astype(np.float32))
    assert server.answered() == EACH_ONCE
    if prompt == PROMPT_ONE:
        sizes = [
            len(prompt.format(document=DOCUMENTS[d], label=LABELS[label])) for d, label in zip(*PAIRS, strict=True)
        ]
        said = [len({YES: "Yes.", NO: "No.", UNPARSED: "Maybe."}[int(answer)]) for answer in found.answers]
        assert (desk.ledger.teacher_prompt_tokens, desk.ledger.teacher_completion_tokens) == (sum(sizes), sum(said))


def test_a_prompt_for_several_labels_costs_less_and_says_the_same(server: Server, tmp_path: Path) -> None:
    server.start()
    one, several = Desk(tmp_path, "one"), Desk(tmp_path, "several")
    by_one = one.judge(endpoint(server))(*PAIRS)
    by_several = several.judge(endpoint(server, prompt=PROMPT_SEVERAL, labels_per_prompt=8))(*PAIRS)
    assert np.array_equal(by_one.answers, by_several.answers)
    assert one.ledger.teacher_calls == several.ledger.teacher_calls
    assert several.ledger.teacher_prompt_tokens < one.ledger.teacher_prompt_tokens


FAULTS = {
    "429": "its server answers 429: such requests are sent again, up to 3 times each",
    "500": "its server answers 500: ",
    "503": "its server answers 503: ",
    "garbage": "its server sends what cannot be read (its replies are not completions): ",
    "html": "its server sends what cannot be read (its replies are not completions): ",
    "empty": "its server sends what cannot be read (its replies are not completions): ",
    "cut": "its server sends what cannot be read (peer closed connection",
    "slow": "",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_got_over_and_told_once(
    server: Server, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.start(fault)
    desk = Desk(tmp_path)
    pairs = every_pair(2)
    found = desk.judge(endpoint(server, concurrency=16, retries=3))(*pairs)
    assert np.array_equal(found.answers, desk.expected(*pairs))
    assert set(server.answered().values()) == {1}
    assert server.answered().total() == len(pairs[0])
    told = [message for message in caplog.messages if message.startswith("warning: teacher openai m: ")]
    assert len(told) == bool(FAULTS[fault])
    assert all(FAULTS[fault] in message for message in told)


def test_a_server_that_hangs_is_asked_again(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.start("hang")
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, timeout=0.5, concurrency=16))(*every_pair(2))
    assert np.array_equal(found.answers, desk.expected(*every_pair(2)))
    assert "openai m: its server does not answer within 0.5 seconds, or breaks off: such requests" in caplog.text


def test_half_an_answer_is_half_unparsed(server: Server, tmp_path: Path) -> None:
    server.start("half")
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, prompt=PROMPT_SEVERAL, labels_per_prompt=8))(*PAIRS)
    expected = desk.expected(*PAIRS).reshape(-1, 8)
    expected[:, 4:] = UNPARSED
    assert np.array_equal(found.answers, expected.ravel())
    assert desk.ledger.teacher_unparsed == 32
    assert server.answered() == EACH_ONCE
    server.start()
    again = Desk(tmp_path, "again")
    found = again.judge(endpoint(server, prompt=PROMPT_SEVERAL, labels_per_prompt=8))(*PAIRS)
    assert np.array_equal(found.answers, again.expected(*PAIRS))
    assert server.answered() == {pair: 1 + (pair[1] in LABELS[4:]) for pair in EACH_ONCE}


def stopped(server: Server, root: Path, fault: str, **settings: Any) -> str:
    """What is told where a server has this fault: one line, and nothing is charged or stored."""
    server.start(fault)
    desk = Desk(root)
    with pytest.raises(TeacherError) as told:
        desk.judge(endpoint(server, **settings))(*every_pair())
    assert desk.ledger.teacher_calls == 0
    assert list(JudgementStore(root / "results").rows()) == []
    assert "\n" not in str(told.value)
    assert SECRET not in str(told.value)
    return str(told.value)


def test_chatter_ends_after_the_first_batch(server: Server, tmp_path: Path) -> None:
    said = "none of 32 replies holds an answer; a reply: 'It depends on what you mean.'; change prompt, or the model"
    told = stopped(server, tmp_path, "chatter")
    assert re.fullmatch(re.escape(f"teacher openai m: {said}; asked so far: ") + r"[\d,]+ tokens", told)
    assert server.answered().total() == FIRST


def test_replies_that_are_cut_end_after_the_first_batch(server: Server, tmp_path: Path) -> None:
    """And are asked for again once there is room, also by the same trial."""
    told = stopped(server, tmp_path, "rambles", answer_tokens=20)
    said = "none of 32 replies holds an answer (32 cut); a reply, which its limit of tokens cut: "
    assert told.startswith(f"teacher openai m: {said}'<think>Is it? Yes or no? No'; raise the limit")
    assert "(answer_tokens: 20); asked so far: " in told
    assert server.answered().total() == FIRST
    server.start()
    desk = Desk(tmp_path, "again")
    found = desk.judge(endpoint(server, answer_tokens=20))(*PAIRS)
    assert np.array_equal(found.answers, desk.expected(*PAIRS))


@pytest.mark.parametrize("fault", ["thinks", "apart"])
@pytest.mark.parametrize("prompt", [PROMPT_ONE, PROMPT_SEVERAL])
def test_a_model_that_thinks_answers_by_default(server: Server, tmp_path: Path, fault: str, prompt: str) -> None:
    server.start(fault)
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, prompt=prompt))(*PAIRS)
    assert np.array_equal(found.answers, desk.expected(*PAIRS))
    assert desk.ledger.teacher_cut == 0


@pytest.mark.parametrize(("fault", "reason"), [("too long", "maximum context length"), ("filter", "content filter")])
def test_a_prompt_that_is_refused_has_no_answer_and_ends_nothing(
    server: Server, tmp_path: Path, fault: str, reason: str
) -> None:
    server.start(fault)
    desk, teacher, pairs = Desk(tmp_path), endpoint(server), every_pair(8, ANSWERED)
    found = desk.judge(teacher)(*pairs)
    refused = np.array(["number 3" in DOCUMENTS[d] for d in pairs[0]])
    assert np.array_equal(found.answers, np.where(refused, UNPARSED, desk.expected(*pairs)))
    ledger = desk.ledger
    assert ledger.teacher_refused == ledger.teacher_unparsed == refused.sum() > 0
    assert ledger.teacher_calls == len(pairs[0])
    assert reason in teacher.without_answer
    prompts = server.asked()
    server.start()
    Desk(tmp_path, "again").judge(endpoint(server))(*pairs)
    assert server.asked() == prompts + refused.sum()


def test_where_every_prompt_is_refused_the_first_batch_is_the_last(server: Server, tmp_path: Path) -> None:
    server.start("too long")
    desk = Desk(tmp_path, documents=[f"number 3 {text}" for text in DOCUMENTS])
    message = r"none of 32 replies holds an answer \(32 refused\); the last prompt was refused: This model's maximum"
    with pytest.raises(TeacherError, match=message):
        desk.judge(endpoint(server))(*every_pair())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("401", r"refuses the requests \(401: wrong key .*\); set the key in \$OPENAI_API_KEY; its earlier"),
        ("404", r"refuses the requests \(404: The model `m` does not exist.\); set base_url, with its /v1, and model;"),
        (
            "parameter",
            r"\(400: Unsupported parameter: 'max_tokens'.*\); `request: \{max_tokens: null\}` leaves that",
        ),
    ],
)
def test_what_all_requests_have_in_common_ends_at_once(
    server: Server, tmp_path: Path, fault: str, message: str
) -> None:
    assert re.search(message, stopped(server, tmp_path, fault))
    assert server.asked() <= 4  # those in flight
    assert server.answered().total() == 0


def test_a_field_that_is_null_is_left_out(server: Server, tmp_path: Path) -> None:
    server.start("parameter")
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, request={"max_tokens": None, "max_completion_tokens": 99}))(*PAIRS)
    assert np.array_equal(found.answers, desk.expected(*PAIRS))


def test_another_model_behind_the_name_is_told(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for fault in ("", "other model"):
        server.start(fault)
        teacher = endpoint(server)
        Desk(tmp_path, fault or "first").judge(teacher)(*every_pair(4 if fault else 2))
        assert teacher.described == ("openai m, served as another-model and m" if fault else "openai m")
    told = "teacher openai m: its server now calls the model another-model, earlier answers are of m; `revision` keeps"
    assert caplog.text.count(told) == 1
    cached = endpoint(server)
    Desk(tmp_path, "cached").judge(cached)(*every_pair(2, 2))
    assert cached.described == "openai m, served as another-model and m"


def test_settings_that_change_nothing_in_a_prompt_share_answers(server: Server, tmp_path: Path) -> None:
    server.start()
    pairs = every_pair(8, ANSWERED)
    Desk(tmp_path).judge(endpoint(server, max_words=4))(*pairs)
    asked = server.answered().total()
    for own in ({"max_words": 99}, {"answer_tokens": 9}, {"labels_per_prompt": 3}, {"request": {"max_tokens": 7}}):
        desk = Desk(tmp_path, str(own))
        desk.judge(endpoint(server, **own))(*pairs)
        assert desk.ledger.teacher_cached == len(pairs[0])
    assert server.answered().total() == asked
    Desk(tmp_path, "cut").judge(endpoint(server, max_words=2))(*pairs)  # "red blue", without its number
    assert server.answered().total() > asked


@pytest.mark.parametrize("prompt", [PROMPT_ONE, PROMPT_SEVERAL])
def test_a_killed_server_costs_nothing_that_was_answered(server: Server, tmp_path: Path, prompt: str) -> None:
    server.start("slow", last=20)
    with pytest.raises(TeacherError, match=r"teacher openai m at http://127.0.0.1:\d+/v1/ does not answer"):
        Desk(tmp_path).judge(endpoint(server, prompt=prompt, labels_per_prompt=2, retries=1))(*PAIRS)
    before = server.answered()
    assert before.total() == 20
    server.start()
    desk = Desk(tmp_path)
    found = desk.judge(endpoint(server, prompt=prompt, labels_per_prompt=2))(*PAIRS)
    assert np.array_equal(found.answers, desk.expected(*PAIRS))
    assert server.answered() == EACH_ONCE


def test_a_server_that_comes_back_in_time_is_not_noticed(server: Server, tmp_path: Path) -> None:
    server.start("slow", last=20)
    desk = Desk(tmp_path)
    back = Timer(2, server.start)
    back.start()
    found = desk.judge(endpoint(server))(*PAIRS)
    back.join()
    assert np.array_equal(found.answers, desk.expected(*PAIRS))
    assert server.answered() == EACH_ONCE


def test_no_server_at_all_is_told_in_a_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"after 2 tries \(APIConnectionError.*its earlier answers are cached$"):
        Desk(tmp_path).judge(endpoint(server, retries=1))(*PAIRS)


def test_the_key_is_told_nobody(server: Server, tmp_path: Path) -> None:
    server.start("401")
    desk = Desk(tmp_path)
    teacher = endpoint(server)
    with pytest.raises(TeacherError) as told:
        desk.judge(teacher)(*PAIRS)
    assert "401" in str(told.value)
    assert told.value.__suppress_context__
    assert SECRET not in str(told.value) + str(teacher.identity()) + teacher.title + teacher.config.model_dump_json()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_limit_on_calls_is_a_limit_at_the_server(server: Server, tmp_path: Path) -> None:
    server.start()
    desk = Desk(tmp_path, budget=Budget(teacher_calls=13))
    found = desk.judge(endpoint(server))(*PAIRS)
    assert server.answered().total() == found.asked.sum() == 13


def test_confidence_is_the_probability_where_the_endpoint_tells_it(server: Server, tmp_path: Path) -> None:
    server.start()
    found = Desk(tmp_path).judge(endpoint(server, logprobs=True))(np.array([0]), np.array([0]))
    assert found.confidence.tolist() == [np.float32(np.exp(-0.5))]


def test_where_the_model_is_served_is_no_part_of_its_answers(server: Server) -> None:
    one = endpoint(server, concurrency=1, timeout=3, retries=2, key_variable="OTHER_KEY")
    assert one.identity() == endpoint(server, base_url="https://elsewhere.example/v1").identity()
    for other in ({"model": "n"}, {"revision": "2"}, {"temperature": 1.0}, {"request": {"seed": 1}}):
        assert endpoint(server, **other).identity() != one.identity()


def test_without_a_key_the_hosted_endpoint_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    teacher = Endpoint(Endpoint.Config(name="openai", model="m"))
    with pytest.raises(TeacherError, match="expected a key in the environment variable OPENAI_API_KEY"):
        Desk(tmp_path).judge(teacher)(np.array([0]), np.array([0]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "http://user:password@host/v1"},
        {"base_url": "http://host/v1?key=secret"},
        {"base_url": "host:8000"},
        {"key_variable": SECRET},
        {"concurrency": 0},
        {"request": {"stream": True}},
        {"request": {"messages": []}},
        {"key": SECRET},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Endpoint.Config.model_validate({"name": "openai", "model": "m"} | wrong)


def test_documents_are_cut_between_words_and_tokens_divided_whole() -> None:
    assert first_words("a  bc\nd", 2) == "a  bc"
    assert first_words(" a b ", 2) == " a b"
    assert first_words("a b", 5) == "a b"
    for total, count in ((10, 3), (0, 4), (7, 7), (5, 8)):
        parts = _divided(total, count)
        assert (parts.sum(), len(parts)) == (total, count)
        assert parts.max() - parts.min() <= 1
