"""`xmcbench predict` as people use it. The fake method ranks labels by how often they were seen: 0, 1, 2, 3, ..."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands import told
from fakes.bench import Bench

from xmcbench.data.source import Source
from xmcbench.files.manifest import write_manifest
from xmcbench.plugins.registry import ONLY, registry
from xmcbench.runs.saved_model import load_calibration
from xmcbench.trial.store import MODEL

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command: its exit code, and what it said on stdout and stderr."""

    def ask(*arguments: str | Path) -> tuple[int, str, str]:
        return told(capsys, "predict", *arguments, *bench.places)

    return ask


def refused(answer: tuple[int, str, str]) -> str:
    """The error of a command that printed nothing else."""
    code, printed, error = answer
    assert (code, printed) == (2, "")
    assert all(line.startswith("error: ") for line in error.splitlines())
    return error


def test_labels_come_as_texts_with_scores_best_first(bench: Bench, ask: Ask) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    for name in (record.key, record.key[:5], "ok", "fake-20/ok"):
        code, shown, error = ask(name, "--text", "a label", "-k", "4")
        assert (code, error) == (0, "")
        assert shown == "a label\n1  3.0000  label 0\n2  3.0000  label 1\n3  3.0000  label 2\n4  2.0000  label 3\n"


def test_json_has_an_entry_a_text(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-rare"]), debug=True)
    _, shown, _ = ask("rare", "--text", "LABEL été", "--text", "", "-k", "2", "--format", "json")
    best = [{"id": 7, "label": "label 7", "score": 2.0}, {"id": 8, "label": "label 8", "score": 2.0}]
    none = {"text": "", "labels": [], "no_label": "no word of the text is in the training data"}
    assert json.loads(shown) == [{"text": "LABEL été", "labels": best}, none]


def test_ten_labels_unless_told_and_never_more_than_there_are(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    for arguments, count in (((), 10), (("-k", "1"), 1), (("-k", "500"), 20)):
        (answer,) = json.loads(ask("ok", "--text", "label", "--format", "json", *arguments)[1])
        assert len(answer["labels"]) == count
    assert ask("ok", "--text", "a", "-k", "0")[0] == 2


def test_texts_may_come_from_a_file_or_standard_input(bench: Bench, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    (bench.root / "texts").write_bytes("a\r\nzwölf\n\nlast".encode())

    def asked(*arguments: str | Path) -> list[str]:
        return [answer["text"] for answer in json.loads(ask("ok", "--format", "json", *arguments)[1])]

    assert asked("--file", bench.root / "texts") == ["a", "zwölf", "", "last"]
    assert asked("--file", bench.root / "texts", "--text", "first") == ["first", "a", "zwölf", "", "last"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert asked("--file", "-") == ["from a pipe"]


def test_only_a_newline_ends_a_text(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    for content, texts in (("a\u2028b\x0cc\r\n\nd", ["a\u2028b\x0cc", "", "d"]), ("a\n", ["a"]), ("\n", [""])):
        (bench.root / "texts").write_text(content, newline="")
        _, shown, _ = ask("ok", "--file", bench.root / "texts", "--format", "json")
        assert [answer["text"] for answer in json.loads(shown)] == texts


def test_texts_that_cannot_be_had_are_one_line(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    (bench.root / "latin").write_bytes(b"caf\xe9")
    (bench.root / "empty").write_bytes(b"")
    assert "no texts: expected --text TEXT or --file FILE" in refused(ask("ok"))
    assert "no texts" in refused(ask("ok", "--file", bench.root / "empty"))
    assert "latin: not UTF-8 (byte 3)" in refused(ask("ok", "--file", bench.root / "latin"))
    assert "No such file" in refused(ask("ok", "--file", bench.root / "absent"))


def test_texts_that_never_end_are_not_read(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    code, _, wrong = ask("ok", "--file", "/dev/zero")
    assert (code, wrong) == (2, "error: /dev/zero: not a regular file\n")


def test_a_name_of_several_trials_is_told_with_all_of_them(bench: Bench, ask: Ask) -> None:
    suite = bench.suite({"ok": {"method": "fake-ok"}}, seeds=[0, 1])
    runner = bench.runner(suite, debug=True)
    records = runner.run(runner.plan(), bench.heard)
    error = refused(ask("fake-20/ok", "--text", "a"))
    assert error.splitlines()[0] == "error: 'fake-20/ok' matches 2 trials, expected the key of one:"
    assert sorted(line.split()[1:] for line in error.splitlines()[1:]) == sorted(
        [record.key, "fake-20/ok,", "seed", str(record.trial.seed) + ",", "5", "steps"] for record in records
    )
    for record in records:
        assert ask(record.key, "--text", "a")[0] == 0
    assert ask("fake-20/ok", "--text", "a", "--seed", "1")[0] == 0
    assert refused(ask("ok", "--text", "a", "--seed", "5")) == "error: --seed 5: found trials with the seeds 0, 1\n"


def test_the_leaderboards_own_names_tell_trials_of_one_label_apart(bench: Bench, ask: Ask) -> None:
    for strength in (1.0, 2.0):
        bench.run(bench.suite({"ok": {"method": "fake-ok", "strength": strength}}), debug=True)
    assert "matches 2 trials" in refused(ask("ok", "--text", "a"))
    assert ask("fake-20/ok (strength=2.0)", "--text", "a")[0] == 0


def test_unknown_names_and_trials_without_a_model_are_one_line(bench: Bench, ask: Ask) -> None:
    assert "no records yet" in refused(ask("ok", "--text", "a"))
    bench.run(bench.suite(["fake-ok", "fake-crash"]))
    assert "no trial is called 'fake20/ok' (did you mean 'fake-20/ok'" in refused(ask("fake20/ok", "--text", "a"))
    assert "fake-20/crash, seed 0, 5 steps ended as error: it has no model" in refused(ask("crash", "--text", "a"))
    assert "no trial is called ''" in refused(ask("", "--text", "a"))


def test_a_model_that_cannot_be_had_is_one_line(bench: Bench, ask: Ask) -> None:
    record = bench.run(bench.suite(["fake-ok"]), debug=True)["ok"]
    model = bench.store.directory(record.key) / "model"
    whole = (model / "popularity.json").read_text()
    (model / "popularity.json").write_text(whole.replace("0", "9"))
    assert f"{model / 'popularity.json'}: damaged: found the digest" in refused(ask("ok", "--text", "a"))
    (model / "popularity.json").write_text("[1, 2")
    assert f"{model / 'popularity.json'}: damaged: found 5 bytes" in refused(ask("ok", "--text", "a"))
    write_manifest(model)
    assert f"{model}: the model of another trial" in refused(ask("ok", "--text", "a"))
    digests = {name: own for name, own in record.digests.items() if name != MODEL}  # as an older record
    bench.store.write_record(record.model_copy(update={"digests": digests}))
    assert f"{model}: cannot be loaded: JSONDecodeError" in refused(ask("ok", "--text", "a"))
    (model / "manifest.json").unlink()
    assert f"{model}: found no manifest.json" in refused(ask("ok", "--text", "a"))
    shutil.rmtree(model)
    assert f"{model}: not there" in refused(ask("ok", "--text", "a"))


def test_another_version_of_the_method_does_not_answer(bench: Bench, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    method = registry().method("fake-ok").thing
    monkeypatch.setattr(method, "info", replace(method.info, version=2))
    assert "found version 2 of method, expected 1" in refused(ask("ok", "--text", "a"))


def test_a_dataset_that_is_gone_or_another_is_one_line(bench: Bench, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    source = registry().thing("dataset", "fake-20")
    assert isinstance(source, Source)
    with monkeypatch.context() as absent:
        absent.setattr(type(source), "missing", lambda _self, data_dir: f"fake-20 is not in {data_dir}: get it nowhere")
        assert refused(ask("ok", "--text", "a")).endswith("data: get it nowhere\n")
    monkeypatch.setattr(type(source), "fingerprint", lambda _self, _data_dir: "2")
    monkeypatch.setattr(sys.modules[type(source).__module__], "NUM_TRAIN", 31)
    assert "its labels may differ" in refused(ask("ok", "--text", "a"))


def test_a_method_may_find_fewer_labels_than_asked_for(bench: Bench, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ONLY, "xmcbench,xmcbench-fakes")
    registry.cache_clear()
    suite = bench.suite({"match": {"method": "tfidf-label"}})
    bench.run(suite, debug=True)
    assert ask("match", "--text", "label nothing", "-k", "2")[1].startswith("label nothing\n1  ")
    assert ask("match", "--text", "unheard of")[1] == "unheard of\n  no word of the text is in the training data\n"


def test_added_labels_are_ranked_or_the_method_says_why_not(
    bench: Bench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ONLY, "xmcbench-fakes,xmcbench")
    registry.cache_clear()
    bench.run(bench.suite({"match": {"method": "tfidf-label"}, "ok": {"method": "fake-ok"}}), debug=True)
    (bench.root / "labels").write_text("other\ntrain\n")
    (bench.root / "none").write_text("")
    arguments = ("--text", "train", "--format", "json")
    (answer,) = json.loads(ask("match", *arguments, "--labels", bench.root / "labels")[1])
    assert [(label["id"], label["label"]) for label in answer["labels"]] == [(21, "train")]
    assert json.loads(ask("match", *arguments)[1]) == [{"text": "train", "labels": [], "no_label": "no label found"}]
    refusal = refused(ask("ok", *arguments, "--labels", bench.root / "labels"))
    assert refusal == "error: method 'fake-ok' ranks only the labels that it was fitted with\n"
    (bench.root / "known").write_text("new\nlabel 3\n")
    (bench.root / "spaced").write_text(" label  3\n")
    (bench.root / "twice").write_text("new\nnewer\nnew \n")
    (bench.root / "empty").write_text("new\n\n")
    for name, problem in (
        ("known:2", "'label 3', expected a new label: the dataset has it as label 3"),
        ("spaced:1", "'label 3', expected a new label: the dataset has it as label 3"),
        ("twice:3", "it is in line 1"),
        ("empty:2", "found no text, expected a label"),
    ):
        assert problem in (found := refused(ask("match", *arguments, "--labels", bench.root / name[:-2])))
        assert name in found
    refusal = refused(ask("match", *arguments, "--labels", bench.root / "none"))
    assert "none: found no label, expected one per line" in refusal


def test_a_trial_that_held_out_queries_has_probabilities_and_a_threshold(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"], selection={"queries": 20}), debug=True)
    (answer,) = json.loads(ask("ok", "--text", "label", "-k", "20", "--format", "json")[1])
    scores, probabilities = ([label[name] for label in answer["labels"]] for name in ("score", "probability"))
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0 <= probability <= 1 for probability in probabilities)
    assert scores == sorted(scores, reverse=True)
    for given in ("auto", "0", str(probabilities[3]), "1"):
        (cut,) = json.loads(ask("ok", "--text", "label", "-k", "20", "--format", "json", "--threshold", given)[1])
        assert cut["labels"] == answer["labels"][: len(cut["labels"])]
        if given != "auto":
            assert len(cut["labels"]) == sum(probability >= float(given) for probability in probabilities)
    assert ask("ok", "--text", "label", "--threshold", "1")[1] == "label\n  no label has a probability of 1.00\n"
    for given in ("2", "-1", "nan", "most"):
        assert "expected auto or a number from 0 to 1" in refused(ask("ok", "--text", "a", "--threshold", given))
    shown = f"{probabilities[0]:.4f}"
    assert ask("ok", "--text", "label", "-k", "1")[1] == f"label\n1  {shown}  {answer['labels'][0]['label']}\n"


def test_a_model_that_saw_the_held_out_queries_has_the_calibration_of_one_that_did_not(bench: Bench) -> None:
    found = []
    for refit in (False, True):
        suite = bench.suite(["fake-ok"], selection={"queries": 20, "refit": refit})
        record = bench.run(suite, debug=True)["ok"]
        assert not (bench.store.directory(record.key) / "calibration.json").exists()
        found.append(load_calibration(bench.store, record))
    assert found[0] is not None
    assert found[0] == found[1]


def test_without_held_out_queries_there_is_no_threshold(bench: Bench, ask: Ask) -> None:
    bench.run(bench.suite(["fake-ok"]), debug=True)
    assert "expected a trial that held out training queries" in refused(
        ask("ok", "--text", "label", "--threshold", "auto")
    )
