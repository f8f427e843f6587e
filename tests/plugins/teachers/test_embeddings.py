"""Embeddings of a paid service: asked once, charged once, at fit and predict; whatever its server does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmcbench.teachers import TeacherError
from xmcbench.trial.budget import Budget
from xmcbench_plugins.teachers.database import JudgementStore, Rule
from xmcbench_plugins.teachers.endpoint import Endpoint

from .desk import Desk
from .server import Server, tokens_of

SECRET = "sk-do-not-tell-0123456789"
TEXTS = [f"a text about number {i} of a hat" + " or more" * (i % 5) for i in range(80)]
PRICE = (2.0, 0.0)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def endpoint(server: Server, **settings: Any) -> Endpoint:
    given = {"name": "openai", "model": "m", "base_url": server.url, "concurrency": 2, "retries": 1} | settings
    return Endpoint(Endpoint.Config.model_validate({"price": PRICE} | given))


def expected(texts: Sequence[str]) -> np.ndarray:
    return np.array([[text.count(letter) for letter in "aeo"] for text in texts], np.float32)


def cost(texts: Sequence[str]) -> int:
    return sum(map(tokens_of, set(texts)))


def test_each_distinct_text_is_asked_for_once_and_charged_once(server: Server, tmp_path: Path) -> None:
    server.start()
    desk = Desk(tmp_path)
    twice = [*TEXTS, *TEXTS[:5]]
    found = desk.judge(endpoint(server)).embed(twice, None)
    assert np.array_equal(found, expected(twice))
    assert set(server.answered().values()) == {1}
    assert (desk.ledger.teacher_calls, desk.ledger.teacher_cached) == (80, 0)
    # The server's count for a request is divided by bytes, so that only the sum over a request is exact.
    assert desk.ledger.teacher_prompt_tokens == cost(TEXTS)
    assert desk.ledger.money == pytest.approx(cost(TEXTS) * PRICE[0] / 1e6)
    desk.judge(endpoint(server)).embed(TEXTS[3:9], None)  # as in predict, after fit: nothing new
    assert (desk.ledger.teacher_calls, server.asked()) == (80, 3)  # requests of 32 texts


def test_another_trial_pays_for_what_the_store_knows(server: Server, tmp_path: Path) -> None:
    server.start()
    Desk(tmp_path).judge(endpoint(server)).embed(TEXTS, None)
    asked, again = server.asked(), Desk(tmp_path, "again")
    assert np.array_equal(again.judge(endpoint(server)).embed(TEXTS[::-1], None), expected(TEXTS[::-1]))
    assert server.asked() == asked
    assert (again.ledger.teacher_cached, again.ledger.teacher_prompt_tokens) == (80, cost(TEXTS))


@pytest.mark.parametrize("fault", ["429", "few", "nan"])
def test_a_fault_that_passes_is_got_over(server: Server, tmp_path: Path, fault: str) -> None:
    server.start(fault)
    desk = Desk(tmp_path)
    assert np.array_equal(desk.judge(endpoint(server)).embed(TEXTS[:40], None), expected(TEXTS[:40]))
    assert desk.ledger.teacher_prompt_tokens == cost(TEXTS[:40])


@pytest.mark.parametrize("fault", ["no usage", "much usage", "negative"])
def test_a_server_that_lies_about_tokens_is_not_believed(
    server: Server, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.start(fault)
    desk = Desk(tmp_path)
    desk.judge(endpoint(server)).embed(TEXTS, None)
    assert 0.5 * cost(TEXTS) < desk.ledger.teacher_prompt_tokens < 2 * cost(TEXTS)
    assert caplog.text.count("which cannot be") == 1


def test_what_all_requests_have_in_common_ends_in_a_line(server: Server, tmp_path: Path) -> None:
    server.start("401")
    with pytest.raises(TeacherError, match=r"refuses the requests \(401: .*set the key in \$OPENAI_API_KEY") as told:
        Desk(tmp_path).judge(endpoint(server)).embed(TEXTS, None)
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_server_that_dies_costs_nothing_twice_and_the_line_says_what_was_asked(
    server: Server, tmp_path: Path
) -> None:
    server.start(last=32)
    with pytest.raises(TeacherError, match=r"does not answer.*its earlier answers are cached; asked so far: ") as told:
        Desk(tmp_path).judge(endpoint(server, concurrency=1, retries=0)).embed(TEXTS, None)
    assert f"asked so far: {cost(TEXTS[:32])} tokens, which cost {cost(TEXTS[:32]) * 2e-6:.4g}" in str(told.value)
    server.start()
    desk = Desk(tmp_path)
    assert np.array_equal(desk.judge(endpoint(server)).embed(TEXTS, None), expected(TEXTS))
    assert server.answered() == Counter({(text, "embedding"): 1 for text in TEXTS})
    assert desk.ledger.teacher_prompt_tokens == cost(TEXTS)


def test_a_model_that_changes_its_vectors_is_told(server: Server, tmp_path: Path) -> None:
    server.start()
    Desk(tmp_path).judge(endpoint(server)).embed(TEXTS[:4], None)
    server.start("longer")
    with pytest.raises(TeacherError, match="have 3 and 4 numbers: its model changed; `revision` keeps models apart"):
        Desk(tmp_path).judge(endpoint(server)).embed(TEXTS[:8], None)


@pytest.mark.parametrize(
    "budget",
    [{"teacher_calls": 11}, {"teacher_tokens": 150}, {"money": 150 * PRICE[0] / 1e6}],
    ids=lambda own: next(iter(own)),
)
def test_a_budget_pays_for_the_first_texts(server: Server, tmp_path: Path, budget: dict[str, Any]) -> None:
    """What is asked of the server beyond them is little: a batch is cut where the budget is likely to end."""
    server.start()
    desk = Desk(tmp_path, budget=Budget(**budget))
    found = desk.judge(endpoint(server)).embed(TEXTS, None)
    assert 0 < len(found) < 40
    assert np.array_equal(found, expected(TEXTS[: len(found)]))
    assert server.answered().total() <= len(found) + 3
    assert desk.ledger.over(desk.budget) == {}
    # A resumed trial asks for the same, and is charged once.
    ledger, again = desk.ledger.state(), server.asked()
    assert np.array_equal(desk.judge(endpoint(server)).embed(TEXTS, None), found)
    assert (desk.ledger.teacher_calls, server.asked()) == (ledger["teacher_calls"], again)


def test_stored_embeddings_can_be_dropped_and_damage_is_noticed(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.start()
    Desk(tmp_path).judge(endpoint(server)).embed(TEXTS[:6], None)
    store = JudgementStore(tmp_path / "results")
    assert store.held(Rule("openai*")) == [("openai m", 6)]
    assert store.held(Rule("openai*", answer=1)) == []
    store._database.execute("UPDATE vector SET content = zeroblob(12) WHERE text = 1")
    assert len(store.vectors(2, np.arange(1, 7)).places) == 5
    assert "1 embeddings are damaged" in caplog.text
    assert store.drop(Rule("openai*")) == 5
