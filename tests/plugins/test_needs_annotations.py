"""Which methods ask for training annotations: they say so before they run, and a zero-shot suite is refused then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import make_run, toy_data

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import registry
from xmcbench.suite.suite import load_suite
from xmcbench.trial.method import Method

ASKS = {
    "dexml": {"batch_size": 20},
    "classifier": {"first": {"method": "untrained"}},
    "cross-encoder": {"first": {"method": "dexml"}, "model": "minilm", "epochs": 0},
    "fuse": {"parts": [{"method": "tfidf-label"}, {"method": "tfidf-nn"}]},
    "memory": {"first": {"method": "untrained"}},
    "ova": {"batch_size": 20},
    "popular": {},
    "sparse-ranker": {"first": {"method": "ict"}},
    "tfidf-nn": {},
    "unidec": {},
}  # fmt: skip
DOES_NOT: dict[str, dict[str, Any]] = {
    "bm25-label": {},
    "cross-encoder": {"first": {"method": "untrained"}, "model": "minilm", "epochs": 0},
    "ict": {},
    "infer-retrieve-rank": {"teacher": "annotated"},
    "lmtx": {"teacher": "annotated"},
    "maclr": {},
    "maclr-pretraining": {},
    "rts": {},
    "tfidf-label": {},
    "untrained": {},
}
FITTED = ("bm25-label", "dexml", "ict", "memory", "ova", "popular", "rts", "tfidf-label", "tfidf-nn", "untrained")


def settings_of(name: str, given: dict[str, Any]) -> Method.Config:
    config: Method.Config = registry().method(name).thing.Config.model_validate(given)
    return config


@pytest.mark.parametrize(("cases", "asks"), [(ASKS, True), (DOES_NOT, False)])
def test_a_method_says_whether_it_asks(cases: dict[str, dict[str, Any]], asks: bool) -> None:
    found = {
        name: registry().method(name).thing.needs_annotations(settings_of(name, given)) for name, given in cases.items()
    }
    assert found == dict.fromkeys(cases, asks)


@pytest.mark.parametrize("name", FITTED)
def test_what_it_says_is_what_it_does(name: str, small_encoder: str, tmp_path: Path) -> None:
    kind, given = registry().method(name).thing, dict(ASKS.get(name) or DOES_NOT.get(name) or {})
    encoder = {"encoder": small_encoder}
    given |= encoder if "encoder" in kind.Config.model_fields else {}
    given |= {"first": given["first"] | encoder} if "first" in given else {}
    config, run = settings_of(name, given), make_run(tmp_path, {"steps": 1})
    run.checkpoint.mkdir(parents=True)
    if kind.needs_annotations(config):
        with pytest.raises(XMCBenchError, match="asks for training annotations"):
            kind(config).fit(toy_data().unannotated(name), run)
    else:
        kind(config).fit(toy_data().unannotated(name), run)


def test_a_zero_shot_suite_is_refused_with_the_line(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    methods = "".join(f"  {name}: {{method: {name}}}\n" for name in ("popular", "tfidf-label", "tfidf-nn"))
    text = f"name: mine\ntrack: zero-shot\ndatasets: [catalog-1k]\nbudget: {{steps: 1}}\nmethods:\n{methods}"
    suite.write_text(text)
    with pytest.raises(XMCBenchError) as refused:
        load_suite(suite, tmp_path)
    why = "learns from training annotations, which track: zero-shot hides; docs/methods.md lists methods that learn"
    assert str(refused.value).splitlines() == [
        f"{suite}:{line}: methods.{name}: {name} {why} without them" for line, name in ((6, "popular"), (8, "tfidf-nn"))
    ]
    suite.write_text(text.replace("zero-shot", "supervised"))
    assert load_suite(suite, tmp_path).track == "supervised"
