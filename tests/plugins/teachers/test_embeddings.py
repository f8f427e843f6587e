"""Embeddings of a paid service: asked once, charged once, at fit and predict; whatever its server does."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import told
from fakes import install_own
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.runs.saved_model import load_saved_model
from xmcbench.teachers import TeacherError
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Status
from xmcbench.trial.run import Run
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


# Trials of the documentation's example ----------------------------------------------------------------------------

NEEDS = 'needs=("label texts", "a service")'


def bought(bench: Bench, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str] | None = None) -> None:
    """Install the method of `docs/teachers.md`, with some of its text changed."""
    page = (Path(__file__).parents[3] / "docs" / "teachers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (source,) = [block for block in blocks if "@hookimpl" in block]
    for old, new in (changed or {}).items():
        assert old in source
        source = source.replace(old, new)
    monkeypatch.delitem(sys.modules, "bought_plugin", raising=False)
    install_own(bench.root / "site", monkeypatch, "bought", source)


def suite(bench: Bench, service: Any, **keys: Any) -> Path:
    return bench.suite({"bought": {"method": "bought-embeddings", "service": service}}, **keys)


def test_a_trial_is_charged_at_fit_and_predict_and_its_saved_model_asks_nobody(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.start()
    bought(bench, monkeypatch)
    service = {"name": "openai", "model": "m", "base_url": server.url, "price": list(PRICE), "retries": 0}
    (record,) = bench.run(suite(bench, service)).values()
    assert record.status is Status.OK, record.failure
    assert record.provenance["checks"]["saved model"] == "forked process"
    texts = server.answered()
    assert set(texts.values()) == {1}
    assert len(texts) == 20 + record.spent["predicted_queries"] == record.spent["teacher_calls"]
    assert record.spent["teacher_tokens"] == cost([text for text, _ in texts])
    assert record.spent["money"] == pytest.approx(record.spent["teacher_tokens"] * PRICE[0] / 1e6)
    assert record.teacher == "openai m"
    asked = server.asked()
    (other,) = bench.run(suite(bench, service, seeds=[1]), debug=True).values()
    assert server.asked() == asked
    assert other.spent["money"] == record.spent["money"]
    # Outside of a trial the service itself is asked.
    found = load_saved_model(bench.store, record).predict(["a hat", "a shoe"], 3)
    assert found.indices.shape == (2, 3)
    assert server.asked() == asked + 1
    given = ("--store", bench.store.root, "--data", bench.root / "data", "--seed", 0, "--format", "json")
    code, out, errors = told(capsys, "predict", "bought", "--text", "a hat", "--text", "a shoe", *given)
    assert (code, len(json.loads(out))) == (0, 2)
    assert "bought asks openai m to embed 2 texts: about 6 tokens, which cost about " in errors
    server.start("401")
    code, _, errors = told(capsys, "predict", "bought", "--text", "a hat", *given)
    assert code == 2
    assert errors.splitlines()[-1].startswith("error: teacher openai m")
    assert "Traceback" not in errors


def test_a_budget_of_money_is_a_limit_and_a_line(bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    bought(bench, monkeypatch)
    service = {"name": "openai", "model": "m", "base_url": server.url, "price": list(PRICE)}
    (record,) = bench.run(suite(bench, service, budget={"money": 150e-6})).values()
    assert record.status is Status.ERROR
    assert record.failure is not None
    assert record.failure.stage == "predict"
    assert record.failure.message.startswith("the budget pays for the embeddings of ")
    assert record.spent["money"] <= 150e-6 + 10e-6
    raised = suite(bench, service, budget={"money": 1.0})
    (record,) = bench.run(raised, debug=True).values()
    assert record.status is Status.OK
    assert set(server.answered().values()) == {1}


def test_costs_are_told_before_and_the_network_is_asked_for_once(
    bench: Bench, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host that the method names, a key that is not set; both before a trial runs."""
    bought(bench, monkeypatch, {NEEDS: 'network=("api.example.com",), secrets=("SHOP",)'})
    planned = suite(bench, {"name": "openai", "model": "m", "base_url": server.url, "price": [1000, 0], "retries": 0})
    status, _, errors = told(capsys, "run", planned, *bench.places)
    assert status == 2
    reached = "while they fit and predict, bought-embeddings reaches api.example.com: expected --allow-network"
    assert f"error: {reached}" in errors
    assert re.search(r"bought on fake-20: asks openai m about each text that it embeds: 50 .* which cost about", errors)
    assert "fails: the environment variable SHOP is not set" in errors
    _, shown, _ = told(capsys, "methods")
    assert "network: api.example.com, $SHOP" in shown


FIT = "self.embed = run.embedder(self.config.service)\n"
SAVE = 'np.savez(directory / "labels.npz", labels_LD=self.labels_LD)'


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({FIT: f"print('key', run.secret('SHOP')); {FIT}"}, Status.OK),
        ({FIT: "raise ValueError('no entry for ' + run.secret('SHOP'))\n"}, Status.ERROR),
        (
            {
                FIT: f"{FIT}        self.key = run.secret('SHOP')\n",
                SAVE: f"{SAVE}; (directory / 'key.txt').write_text(self.key)",
            },
            Status.INVALID,
        ),
    ],
    ids=["print", "error", "save"],
)
def test_a_secret_is_told_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], status: Status
) -> None:
    """Nor may a saved model hold one."""
    monkeypatch.setenv("SHOP", "open sesame, twice")
    bought(bench, monkeypatch, {NEEDS: "secrets=('SHOP',)", **changes})
    (record,) = bench.run(suite(bench, "words")).values()
    assert record.status is status, record.failure
    if status is Status.INVALID:
        assert record.failure is not None
        assert record.failure.message == "save wrote a secret into key.txt: a loaded model reads it with secret()"
    for path in (path for path in bench.root.rglob("*") if path.is_file()):
        assert b"sesame" not in path.read_bytes(), path


@pytest.mark.parametrize(("value", "found"), [(None, "is not set"), ("short", "has 5 characters")])
def test_a_secret_that_cannot_be_read_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, found: str
) -> None:
    run = Run(0, Budget(steps=1), tmp_path, tmp_path, secrets=("SHOP",))
    if value is not None:
        monkeypatch.setenv("SHOP", value)
    with pytest.raises(XMCBenchError, match=f"the environment variable SHOP {found}"):
        run.secret("SHOP")
    with pytest.raises(XMCBenchError, match=r"expected a name of MethodInfo\(secrets=\('OTHER',\)\)"):
        run.secret("OTHER")
