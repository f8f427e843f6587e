"""Records that were edited and signed again: a board and a page can be made of whatever is read as a record.

`tests/attacks/test_submissions.py` has what `xmcbench submit --check` says about records that mislead.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmcbench.reporting.describe import describe
from xmcbench.reporting.leaderboard_text import FORMATS, render
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.trial.record import Record, RecordError, decode, encode
from xmcbench_plugins.board.acceptance import contradictions, problems
from xmcbench_plugins.board.page import write_page

from attacks.hostile import VALUES, content, mutations, places, replaced, signed  # isort: skip

# A trial with a curve, one with an approximate search, one that ran side by side, and one that trains nothing.
TRIALS = ("07295ea6879f0e90", "002baf34ac376d4e", "0b0a10b9adb72766", "0021baeaa1eddf12")


@cache
def originals() -> dict[str, Any]:
    return {name: content(name) for name in TRIALS}


@cache
def honest() -> list[Record]:
    return [decode(signed(record)) for record in originals().values()]


def show(record: Record, folder: Path) -> None:
    """The record beside honest ones in every format, on the page, and alone."""
    records = {each.key: each for each in honest() if each.trial != record.trial}
    records[honest()[0].key] = record.model_copy(
        update={"key": honest()[0].key}
    )  # a store reads no record of another key
    board = leaderboard(records.values())
    for format in FORMATS:
        render(board, format)
    write_page(board, records, folder)
    describe(record)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_read_as_a_record_is_shown(data: st.DataObject, tmp_path: Path) -> None:
    original = originals()[data.draw(st.sampled_from(TRIALS))]
    made = data.draw(mutations(original))
    try:
        record = decode(signed(made))
    except (RecordError, UnicodeEncodeError):
        return
    assert decode(encode(record)) == record
    show(record, tmp_path)


@pytest.mark.parametrize("setting", ["batch_size", "learning_rate", "encoder", "max_query_length"])
@pytest.mark.parametrize("value", ["many", None, [1], {"of": 1}])
def test_settings_of_any_type_are_shown(setting: str, value: Any, tmp_path: Path) -> None:
    few_steps = replaced(originals()[TRIALS[0]], ("spent", "steps"), 5)
    show(decode(signed(replaced(few_steps, ("trial", "config", setting), value))), tmp_path)


@pytest.mark.long
def test_every_field_has_a_type() -> None:
    """No field takes all hostile values: each refuses those of other types, and no number is beyond all bounds."""
    original = originals()[TRIALS[0]]
    free = ("config",)  # settings are those of the method, which the check asks
    for place in places(original):
        if any(part in free for part in place):
            continue
        refused = 0
        for value in VALUES:
            try:
                decode(signed(replaced(original, place, value)))
            except (RecordError, UnicodeEncodeError):
                refused += 1
            else:
                assert value == value, place
                assert isinstance(value, bool) or not isinstance(value, int | float) or abs(value) < 1e25, place
        assert refused > len(VALUES) / 3, place


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("spent", "device_seconds"), "fast"),
        (("spent", "side_by_side"), "x"),
        (("spent", "steps"), -5),
        (("spent", "stage_seconds", "train"), -3453.0),
        (("spent", "stage_seconds", "train"), float("nan")),
        (("metrics", "P@1"), float("nan")),
        (("intervals", "P@1"), [0.1, float("inf")]),
        (("intervals", "P@7"), [0.1, 0.2]),
        (("curve", 0, "flops"), float("inf")),
        (("num_parameters",), -5),
        (("trial", "budget", "epochs"), 1e300),
        (("trial", "config", "learning_rate"), float("nan")),
        (("provenance", "git"), [1]),
        (("chosen",), {"samples": [{"trial": 1}]}),
    ],
)
def test_what_is_no_amount_is_no_record(place: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(RecordError, match=r"^not a record: ") as caught:
        decode(signed(replaced(originals()[TRIALS[0]], place, value)))
    assert "\n" not in str(caught.value)


# A field of an honest record, what a forger writes there, and a part of what the check says. The digest matches, and
# the key is that of the changed trial where `trial` is changed.
DEXML = content("07295ea6879f0e90")
LIMIT = next(name for name, limit in DEXML["trial"]["budget"].items() if limit)
SPENT = DEXML["spent"]
BY_PROCESSORS = SPENT | {"clock": "processor", "stage_cpu_seconds": {"train": 1.0}, "device_seconds": 1.0}
BY_PROCESSORS |= {"fit_seconds": 1.0}
SAMPLE = {"settings": {}, "quality": 0.5, "trial": "a" * 16, "budget": {}}
TUNED = {"by": "random", "metric": "nDCG@5", "on": DEXML["selection_split"], "settings": {}, "quality": 0.5}
TUNED |= {"samples": [SAMPLE], "spent": {"steps": 1}}
LIES: list[tuple[str, Any, str]] = [
    # identity
    ("key", "0" * 16, "its key is"),
    ("key", DEXML["key"].upper(), "its key is"),
    ("key_version", 1, "written by schema version 1"),
    ("key_version", 99, "written by schema version 99"),
    ("trained_by", "../../x", "expected a key"),
    ("trained_by", "a" * 17, "expected a key"),
    ("trial.method", "no-such-method", "is none of xmcbench"),
    ("trial.distribution", "evil", "expected xmcbench"),
    ("trial.versions.method", 99, "the newest is"),
    ("trial.versions.engine", 99, "the newest is"),
    ("trial.versions.selection", 99, "the newest is"),
    ("status", "over_budget", "its status is over_budget"),
    ("status", "error", "its status is error"),
    ("trial.budget", {}, "budget is unknown"),
    ("trial.budget", dict.fromkeys(DEXML["trial"]["budget"]), "budget is unknown"),
    ("trial.track", "open", "not a record"),
    ("simulated_teacher", "no idea", "not a record"),
    # texts
    ("trial.label", "", "its label is"),
    ("trial.label", "   ", "its label is"),
    ("trial.label", "\x1b[2Jdexml", "its label is"),
    ("trial.label", "dexml\nbest", "its label is"),
    ("trial.label", "\u202elmxed", "its label is"),
    ("trial.label", "\u200bdexml", "its label is"),
    ("trial.label", "a" * 201, "its label is"),
    ("trial.label", "a\x07b", "its label is"),
    ("suite", "\x9b31m", "its suite is"),
    ("suite", "", "its suite is"),
    ("trial.dataset", "catalog\r1k", "its dataset is"),
    ("trial.dataset", "", "its dataset is"),
    ("trial.version", "0.1\x00", "its version is"),
    ("teacher", "gpt\x1b]0;x\x07", "its teacher is"),
    ("selection_split", "train\ttest", "its selection_split.way is"),
    ("provenance.cpu", "\x1b[31m", "provenance.cpu"),
    ("provenance.platform", "a" * 30_000, "provenance.platform"),
    ("provenance.command", ["xmcbench", "\u2066run"], "its provenance.command is"),
    ("provenance.versions", {"torch\x1b": "2"}, "its provenance.versions.torch"),
    ("provenance.checks", {"test files": "\x1b[8m"}, "its provenance.checks.test files is"),
    ("trial.config.loss", "soft\u202emax", "its trial.config.loss is"),
    # metrics
    ("metric_version", 0, "definitions 0"),
    ("metric_version", 7, "definitions 7"),
    ("metrics", {}, "an interval of P@1, which has no value"),
    ("metrics.Best@1", 1.0, "unknown metric"),
    ("metrics.P@0", 1.0, "P@0"),
    ("metrics", {"P@1": 1.0000001}, "not a record"),
    ("metrics.P@1", -0.2, "not a record"),
    ("metrics.P@1", "0.9", "not a record"),
    ("metrics.P@1", True, "not a record"),
    ("metrics.P@1", 0.999, "without its value"),
    ("metrics.P@5", 0.9, ""),
    ("metrics.R@100", 0.0001, ""),
    ("intervals.P@1", [0.9, 0.1], "without its value"),
    ("intervals.P@1", [0.0, 0.0001], "without its value"),
    ("intervals.P@1", [0.1], "not a record"),
    ("intervals.P@1", ["low", "high"], "not a record"),
    ("truth_hash", "", "does not name the truth"),
    ("truth_hash", "0" * 63, "does not name the truth"),
    ("truth_hash", "G" * 64, "does not name the truth"),
    # costs
    ("spent", {}, "does not say what it spent"),
    ("spent.encoder_tokens", None, "not a record"),
    ("spent.encoder_tokens", -1, "not a record"),
    ("spent.encoder_tokens", 1.5, "not a record"),
    ("spent.encoder_tokens", 0, "encoder_tokens in"),
    ("spent.encoder_flops", 0, "flops"),
    ("spent.flops", 1, "its parts sum to"),
    ("spent.flops", 10**23, "its parts sum to"),
    ("spent.device_seconds", 0.001, "its parts sum to"),
    ("spent.device_seconds", 1e9, "its parts sum to"),
    ("spent.teacher_tokens", 5, "its parts sum to"),
    ("spent.teacher_prompt_tokens", 10**9, "its parts sum to"),
    ("spent.stage_seconds", {}, "its parts sum to"),
    ("spent.stage_seconds.train", -3453.0, "not a record"),
    ("spent.stage_seconds.free", 100.0, "in the stage 'free'"),
    ("spent.predicted_queries", 0, "predicted nothing"),
    ("spent.side_by_side", 0, "it ran in no process"),
    ("spent.side_by_side", "x", "not a record"),
    ("spent.largest_step", {LIMIT: 1e18}, "its largest step took"),
    ("spent.largest_step", {"free lunches": 3.0}, "its largest step took"),
    ("spent.largest_step", [1], "not a record"),
    (f"spent.{LIMIT}", 50 * SPENT[LIMIT], "more than one step past"),
    (f"spent.{LIMIT}", 10**24, "more than one step past"),
    ("spent.shortlist_recall", 1.5, "not a record"),
    ("spent.search_recall", -1.0, "not a record"),
    ("spent.worker_bytes", [-1], "not a record"),
    ("spent.worker_bytes", "many", "not a record"),
    ("spent.bonus", 3, "not a record"),
    ("spent.clock", "sundial", "not a record"),
    ("spent.clock", "processor", "its parts sum to"),
    ("spent.stage_cpu_seconds", {"free": 1.0}, "in the stage 'free'"),
    ("spent.not_counted", ["flops"], "it did not count flops, and states it"),
    ("spent.not_counted", ["luck"], "it did not count 'luck'"),
    ("spent.wall_seconds", float("inf"), "not a record"),
    ("workers", 0, "it ran in no process"),
    ("workers", -1, "not a record"),
    ("workers", 1.5, "not a record"),
    ("num_parameters", -5, "not a record"),
    ("num_parameters", 10**40, "not a record"),
    # the curve
    ("curve.0.P@1", 1.7, "expected a fraction"),
    ("curve.0.steps", -3.0, "goes back in steps"),
    ("curve.0.steps", 1e9, "in steps"),
    ("curve.0.encoder_tokens", 1e12, "encoder_tokens"),
    ("curve.0.flops", 1e23, "flops"),
    ("curve.0", 3, "not a record"),
    ("curve", [{"fraction": "x"}], "not a record"),
    # provenance
    ("provenance", {}, "does not say git"),
    ("provenance.git", {}, "does not say git"),
    ("provenance.git.commit", "main", "expected 40 hexadecimal digits"),
    ("provenance.git.dirty", True, "expected a clean git tree"),
    ("provenance.git.dirty", None, "not a record"),
    ("provenance.command", [], "does not say command"),
    ("provenance.memory_bytes", 0, "does not say memory_bytes"),
    ("provenance.gpu", 7, "not a record"),
    ("provenance.gpus", "8", "not a record"),
    ("provenance.plugin", {"digest": "b" * 64, "git": {}}, "in no git repository"),
    ("provenance.plugin", {"digest": "b" * 64, "git": {"commit": "a" * 40, "dirty": True}}, "its plugin had changes"),
    ("provenance.plugin", {"digest": "b" * 64, "git": {"commit": "v1", "dirty": False}}, "in no git repository"),
    ("started", "yesterday", "does not say when"),
    ("ended", "", "does not say when"),
    ("ended", "2020-01-01T00:00:00+00:00", "it began at"),
    ("ended", "2999-01-01T00:00:00+00:00", "it began at"),
    ("ended", "2026-11-22", "does not say when"),
    ("chosen", {"samples": [{"trial": "x"}]}, "not a record"),
    ("chosen", {"quality": float("nan")}, "not a record"),
    ("failure", {"type": 3, "message": ""}, "not a record"),
    # names that look like others, or like nothing
    ("trial.label", "d\u0435xml", "expected Latin letters"),
    ("trial.label", "\u2800\u2800", "expected Latin letters"),
    ("trial.label", "\u115f", "expected Latin letters"),
    ("trial.label", "n\u034fet", "expected Latin letters"),
    ("trial.label", "\u3164", "expected Latin letters"),
    ("trial.label", "\uff4e\uff45\uff54", "expected Latin letters"),
    ("trial.label", "1  net", "expected Latin letters"),
    ("trial.label", "x\u0334\u0335\u0336", "expected Latin letters"),
    *(("trial.label", f"dexml{mark}", "its label is") for mark in "≈¹†‡↓◇□○★"),
    ("trial.label", "dexml (over_budget)", "expected Latin letters"),
    ("suite", "\u2800", "its suite is"),
    ("trial.dataset", "catalog-\uff11k", "its dataset is"),
    ("trial.version", "official release", "its version is"),
    # identity
    ("trial.versions", {}, "no version of its method"),
    ("failure", {"type": "Ok", "message": "the best"}, "no failure"),
    ("trained_by", DEXML["key"], "a key of another trial"),
    ("trial.selection", None, "holds no queries out"),
    ("selection_split", "train: 9 queries held out", "its trial says train: 300 queries held out"),
    ("digests", {"../../x": "0" * 64}, "expected SHA-256 of"),
    ("digests", {"predictions.npz": "trust me"}, "expected SHA-256 of"),
    ("chosen", {"by": "\u202ex"}, "its chosen.by is"),
    ("chosen", TUNED | {"samples": [SAMPLE | {"trial": "\x07"}]}, "no keys of trials"),
    ("chosen", TUNED | {"samples": [SAMPLE, SAMPLE]}, "one twice"),
    ("chosen", TUNED | {"samples": []}, "names no samples"),
    ("chosen", TUNED | {"settings": {"batch_size": 10**6}}, "other settings"),
    ("chosen", TUNED | {"quality": 0.9}, "which none of its samples"),
    ("chosen", TUNED | {"quality": 99.0, "samples": [SAMPLE | {"quality": 99.0}]}, "a quality of 99"),
    ("chosen", TUNED | {"on": "the test split"}, "its tuning chose on"),
    ("chosen", TUNED | {"spent": {}}, "does not say what it spent"),
    ("chosen", TUNED | {"spent": {"goodwill": 1.0}}, "its tuning spent"),
    ("chosen", {"by": "hand"}, "its tuning does not say"),
    # costs that no trial has
    ("num_parameters", 0, "trained no parameters"),
    ("spent.model_bytes", 0, "has 0 bytes"),
    ("spent.worker_bytes", [10**20], "at most"),
    ("spent.worker_bytes", [1] * 7, "7 workers of 1"),
    ("workers", 1000, "workers of 1000"),
    ("spent.epochs", 0, "0 epochs on"),
    ("spent.queries", 0, "on 0 queries"),
    ("spent.pool_positives", 10**23, "positives among"),
    ("spent.refused_pass", 9, "more than one pass"),
    ("spent.teacher_calls", 10**6, "which was asked 1000000 times"),
    ("spent.teacher_cached", 5, "more answers were cached"),
    ("teacher", "gpt", "which was asked 0 times"),
    ("simulated_teacher", True, "which was asked 0 times"),
    ("spent.wall_seconds", 1e9, "ended from outside"),
    ("spent", BY_PROCESSORS | {"peak_device_bytes": 5}, "its device seconds are those of processors"),
    # a curve that nobody measured
    ("curve", [{"steps": 1.0, "luck": 1.0}], "expected metrics and costs"),
    ("curve", [{"steps": 1.0, "\x1b[2J": 1.0}], "its curve is"),
    ("curve", [{"steps": 1.0, "Best@1": 1.0}], "its curve: unknown metric"),
    ("curve", [{"steps": 1.0, "fraction": 9.0}], "far past the budget"),
    ("curve", [{"steps": 1.0, "fraction": 0.9}, {"steps": 2.0, "fraction": 0.1}], "goes back in fraction"),
    ("curve", [{"P@1": 0.5}], "without metrics or costs"),
    ("selection_split", "none", "no queries were held out"),
    # provenance
    ("provenance.versions", {"xmcbench": "9.9"}, "its provenance has xmcbench '9.9'"),
    ("provenance.predictions", "other.npz", "by another program"),
    ("provenance.command", ["run", "--token=ghp_" + "a" * 36], "it holds a secret"),
    ("provenance.plugin", {"digest": "x", "git": {"commit": "a" * 40, "dirty": False}}, "its plugin's digest"),
    ("started", "2026-11-22T09:00:00", "does not say when"),
    ("ended", "2999-11-24T10:00:00-12:00", "does not say when"),
    # times that are sorted wrongly, data without a name, a cluster that nobody has
    ("ended", "20261122T090000+00:00", "does not say when"),
    ("started", "2026-W47-7T09:00:00+00:00", "does not say when"),
    ("started", "\uff12026-11-22T09:00:00+00:00", "does not say when"),
    ("trial.dataset_hash", "", "64 hexadecimal digits"),
    # labels that say what the trial is not, costs without a source, checks that nobody made
    ("trial.label", "DEXML", "the name of another method: DEXML"),
    ("trial.label", "rts", "the name of another method: RTS"),
    ("trial.label", "unidec[batch_size=64]", "the name of another method: UniDEC"),
    ("trial.label", "dex[batch_size=1024]", "its label says 'batch_size' is 1024"),
    ("trial.label", "dex[no_such_setting=3]", "its settings have 'no such setting'"),
    ("spent.teacher_calls", 5, "its teacher is"),
    ("metrics", {"R@100": 0.9}, "an interval of"),
    # a fresh attack: names in other scripts, texts that vouch, what the harness never writes
    *(
        ("trial.label", name, "expected Latin letters")
        for name in ("\u0412\u041c25", "\ua4d0\ua4df25", "pr\u0131me", "d|")
    ),
    *(
        ("trial.label", name, "expected Latin letters")
        for name in ("\\textbf{x}", '=HYPERLINK("x")', "dex{size=9}", "a" * 101)
    ),
    ("suite", "\u0435\u0445", "its suite is"),
    ("provenance.command", ["rm", "-rf", "~"], "its command runs 'rm', expected xmcbench"),
    ("trial.held_out_only", True, "a sample of a tuning"),
    ("spent.ended", "converged: as good as it gets", "spent.ended"),
    ("spent.ended", "", "spent.ended"),
    ("spent.ended", "flat", "it ended early"),
    ("spent.ended", "stage_too_large", "it ended early"),
    ("curve", DEXML["curve"][:1], "its curve has 1 points"),
    ("curve", [], "its curve has 0 points"),
    ("curve", [point | {"fraction": 1.9} for point in DEXML["curve"]], "where it says 190%"),
    ("curve", [{"steps": point["steps"], "P@5": 0.5} for point in DEXML["curve"]], "which chooses the checkpoint"),
]


@pytest.mark.parametrize(("field", "value", "message"), LIES, ids=[f"{n} {lie[0]}" for n, lie in enumerate(LIES)])
def test_a_lie_is_named(field: str, value: Any, message: str) -> None:
    place = tuple(int(part) if part.isdigit() else part for part in field.split("."))
    made = replaced(DEXML, place, value)
    try:
        record = decode(signed(made))
    except RecordError as problem:
        found = [str(problem)]
    else:
        if place[0] == "trial":
            record = record.model_copy(update={"key": record.trial.key})
        found = list(problems(record))
    assert any(message in problem for problem in found), found
    assert not any("\n" in problem or "\x1b" in problem for problem in found)


def test_the_honest_record_has_no_problem() -> None:
    assert [list(problems(record)) for record in honest()] == [[]] * len(TRIALS)


def test_a_label_is_not_the_name_of_another_method() -> None:
    first, second = next((a, b) for a in honest() for b in honest() if a.trial.method != b.trial.method)
    for label, said in ((second.trial.method, 1), (first.trial.method, 0), (f"{second.trial.method}-2", 0)):
        named = first.model_copy(update={"trial": first.trial.model_copy(update={"label": label})})
        found = contradictions([named, second], {}).get(named.key, [])
        assert sum("the name of another method" in problem for problem in found) == said, found


def test_a_record_needs_the_metric_that_tables_rank_by() -> None:
    (record, *_) = honest()
    alone = record.model_copy(update={"metrics": {"R@100": 0.9}, "intervals": {}})
    assert any("it does not have P@5, by which tables rank" in problem for problem in problems(alone))
