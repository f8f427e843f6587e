"""What a record must be like to be accepted, as far as the record alone shows.

A digest is a checksum: whoever edits a record can write a new one. So all that can be compared is compared: the key
with the trial, sums with their parts, costs with the budget, versions with this code. What is left is a statement of
the submitter; `xmcbench/engine/planning/recount.py` counts the steps, tokens and operations again.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import PurePath
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.evaluation import check_metrics, find_evaluators
from xmcbench.plugins.registry import OWN, registry
from xmcbench.reporting.accepted_costs import MOST_PROCESSES, ROUNDING, curve_problems, elapsed, ledger_problems
from xmcbench.reporting.costs import CURVE_COSTS
from xmcbench.reporting.curated import NamedMethod, methods, stem
from xmcbench.reporting.numbers import folded
from xmcbench.trial.budget import UnknownBudget
from xmcbench.trial.record import METRIC_VERSION, Record, Status
from xmcbench.trial.record_fields import ChosenFields, walk
from xmcbench.trial.store import PREDICTIONS, RESAMPLED
from xmcbench.trial.trial import SCHEMA_VERSION, Trial
from xmcbench.trial.versions import ENGINE_VERSION, SELECTION_VERSION, selection_versions

# Words by which the board vouches for a row.
VOUCHED = frozenset({"verified", "retrained", "recomputed", "recounted", "published", "claimed", "official"})
NEEDED = ("git", "versions", "python", "platform", "cpu", "cores_usable", "memory_bytes", "command")
KEY, COMMIT, DIGEST = r"[0-9a-f]{16}", r"[0-9a-f]{40}", r"[0-9a-f]{64}"
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00"
MEASURED = (  # from outside of a method
    "fit_seconds", "fit_wait_seconds", "fit_cpu_seconds", "fit_children_cpu_seconds", "predict_cpu_seconds",
    "predicted_queries", "model_bytes",
)  # fmt: skip
LONGEST_NAME = 100  # characters
# A name that every reader sees alike: no letters of other scripts, invisible characters or markup; values of a sweep.
NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*( [A-Za-z0-9._+-]+)*(\[[ -~]*\])?"
LONGEST_LIST = 20_000  # characters of texts and lists that are no names
FIRST_YEAR = 2026  # of xmcbench
# What the harness says of how it checked a method's contract.
CHECKS = {
    "network": {"audit hook"},
    "saved model": {"forked process", "same process"},
    "test files": {"audit hook", "Landlock, audit hook"},
}
HEADLINE = "P@1"  # by which tables rank


def problems(record: Record) -> Iterator[str]:
    """Why a record cannot be accepted, as far as the record alone shows."""
    if record.status is not Status.OK or record.failure is not None:
        yield f"its status is {record.status}, expected ok and no failure"
    if record.trial.held_out_only:
        yield "it is a sample of a tuning, which never sees the test split"
    yield from _identity(record)
    yield from _texts(record)
    yield from label_problems(record.trial)
    yield from _metrics(record)
    if record.trial.track == "zero-shot" and record.simulated_teacher:
        yield "its teacher was simulated from annotations, which the zero-shot track does not allow"
    yield from _gaps(record)
    yield from _links(record)
    if isinstance(record.trial.budget, UnknownBudget):
        if record.trial.distribution != "none" or any(record.spent.values()):
            yield "its budget is unknown, which only predictions of another program may have"
        return
    yield from _plugin(record)
    yield from ledger_problems(record)
    yield from curve_problems(record)


def outdated(record: Record) -> Iterator[str]:
    """Why a record cannot be submitted any more. A record that was accepted before a new version stays."""
    if isinstance(record.trial.budget, UnknownBudget):
        return
    if not record.code_digest or not {PREDICTIONS, RESAMPLED} <= record.digests.keys():
        yield "its provenance does not name the plugin's code, or it has no digests of its files: run it again"
    if not {"test files", "network", "saved model"} <= record.provenance.get("checks", {}).keys():
        yield "its provenance does not say which checks of the method were made: run it again"
    if missing := [name for name in MEASURED if name not in record.spent]:
        yield f"it does not say what the harness measured: {', '.join(missing)}"
    trial = record.trial
    plugin = _registered(trial.method)
    if plugin is not None and plugin.origin.distribution == trial.distribution:
        try:
            config = plugin.thing.Config.model_validate(trial.config)
        except ValidationError as problem:
            error = problem.errors(include_url=False)[0]
            place = ".".join(map(str, error["loc"]))
            yield f"its setting {shown(place)} is {shown(error['input'])}: {error['msg']}"
            return
        if _written(config.model_dump(mode="json")) != _written(trial.config):  # 16.0 is not 16
            yield "its settings are not all that its method has, as it writes them"
        try:
            chosen_by = selection_versions(trial.selection.metric) if trial.selection else {}
        except UnknownNameError as problem:
            yield str(problem)
            return
        if (parts := {**plugin.thing.versions(config), **chosen_by}) != trial.versions:
            yield f"it is a result of {_parts(trial.versions)}, this code has {_parts(parts)}: run it again"


def _written(config: Any) -> str:
    return json.dumps(config, sort_keys=True)


def _parts(versions: Mapping[str, int]) -> str:
    return ", ".join(f"{part} {version}" for part, version in sorted(versions.items())) or "no versions"


def _registered(method: str) -> Any:
    """The registered method of this name; None where it is not installed."""
    try:
        return registry().method(method)
    except UnknownNameError:
        return None


def contradictions(records: Sequence[Record], before: Mapping[str, Record]) -> dict[str, list[str]]:
    """By key: what accepted trials say against each other, and against what was accepted `before`."""
    found: dict[str, list[str]] = defaultdict(list)
    by_key = {record.key: record for record in records}
    truths: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, Counter[str]] = defaultdict(Counter)
    seeds: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        truths[record.trial.dataset_hash][record.truth_hash] += 1
        names[record.trial.dataset_hash][record.trial.dataset] += 1
        if record.spent.get("encoder_tokens") and (digest := record.digests.get(PREDICTIONS)):
            settings = record.trial.model_dump_json(exclude={"seed", "version", "label"})
            seeds[settings, digest].append(record)
    for same in seeds.values():
        for record in same[1:]:
            found[record.key].append(f"it has the predictions of {same[0].key}, which has another seed")
    methods = {record.trial.method for record in records}
    for record in records:
        trial = record.trial
        if trial.label != trial.method and trial.label in methods:
            found[record.key].append(f"its label is {shown(trial.label)}, the name of another method")
        truth = truths[trial.dataset_hash].most_common(1)[0][0]
        if record.truth_hash != truth:
            found[record.key].append(f"its truth is {record.truth_hash[:12]}, others of its data have {truth[:12]}")
        name = names[trial.dataset_hash].most_common(1)[0][0]
        if trial.dataset != name:
            found[record.key].append(f"its dataset is {shown(trial.dataset)}, others of its data name {name}")
        trainer = by_key.get(record.trained_by)
        if record.trained_by and (trainer is None or trainer is record or not _same_training(record, trainer)):
            found[record.key].append(f"its model is of {record.trained_by}, which is no accepted training of it")
        if record.key in before and before[record.key] != record:
            found[record.key].append("it differs from the record of this key that was accepted before")
        for sample in record.chosen.get("samples", ()):
            if sample["trial"] in by_key.keys() - {record.key}:  # which the board would leave out
                found[record.key].append(f"its tuning names {sample['trial']}, an accepted trial")
    return found


def _same_training(record: Record, trainer: Record) -> bool:
    """Whether two trials can have one training: what it spent is the same, and so is what it was trained for."""
    names = ("method", "dataset_hash", "seed", "budget", "selection", "track")
    same = all(getattr(record.trial, name) == getattr(trainer.trial, name) for name in names)
    return same and all(record.spent.get(name) == trainer.spent.get(name) for name in ("steps", "encoder_tokens"))


def _identity(record: Record) -> Iterator[str]:
    """A key of another trial, and versions that would make other results those of older code."""
    trial = record.trial
    if record.key_version != SCHEMA_VERSION:
        yield f"it was written by schema version {record.key_version}, expected {SCHEMA_VERSION}: run it again"
    if record.key != trial.key:
        yield f"its key is {record.key}, that of its trial {trial.key}"
    if not re.fullmatch(DIGEST, trial.dataset_hash):
        yield f"it names the content of its dataset {shown(trial.dataset_hash)}, expected 64 hexadecimal digits"
    newest = {"engine": ENGINE_VERSION, "selection": SELECTION_VERSION}
    plugin = _registered(trial.method)
    if not isinstance(trial.budget, UnknownBudget) and not trial.versions.get("method"):
        yield "it names no version of its method"
    if min(trial.versions.values(), default=1) < 1:
        yield f"it is a result of {_parts(trial.versions)}, expected versions from 1"
    if plugin is not None and plugin.origin.distribution != trial.distribution:
        yield f"its method {trial.method!r} is of {trial.distribution}, expected {plugin.origin.distribution}"
    if plugin is not None:
        newest["method"] = plugin.thing.info.version
    elif trial.distribution == OWN:
        yield f"its method {shown(trial.method)} is none of xmcbench"
    for part, version in trial.versions.items():
        if version > newest.get(part, version):
            yield f"its version of {part} is {version}, the newest is {newest[part]}"


def _texts(record: Record) -> Iterator[str]:
    """Texts that a terminal or a page would obey, or that nobody can read."""
    trial, provenance = record.trial, record.provenance
    names = {"label": trial.label, "suite": record.suite, "method": trial.method, "dataset": trial.dataset}
    names |= {"distribution": trial.distribution, "version": trial.version}
    others = {"teacher": record.teacher, "selection": record.selection_split}
    others |= {"spent.ended": record.spent["ended"]} if "ended" in record.spent else {}
    others |= {f"provenance.{name}": text for name, text in provenance.items() if isinstance(text, str)}
    lists: dict[str, Iterable[str]] = {"metrics": record.metrics, "parts": trial.versions}
    lists["command"] = provenance.get("command", ())
    lists |= {name: chain(*provenance.get(name, {}).items()) for name in ("versions", "checks")}
    lists["curve"] = chain(*record.curve)
    lists["digests"] = record.digests
    lists["chosen"] = (text for text, _ in walk(record.chosen) if isinstance(text, str))
    lists["settings"] = (text for text, _ in walk(trial.config) if isinstance(text, str))
    others |= {name: " ".join(words) for name, words in lists.items()}
    for name, text in names.items():
        if len(text) > LONGEST_NAME or not re.fullmatch(NAME, text):
            yield f"its {name} is {shown(text)}, expected Latin letters, digits, single blanks and . _ + -"
    for name, text in (names | others).items():
        if name not in ("command", "settings") and (words := VOUCHED & {*re.findall(r"[a-z]+", text.casefold())}):
            yield f"its {name} is {shown(text)}: {min(words)} is a word of the leaderboard"
    for name, text in others.items():
        if not text.isprintable() or len(text) > LONGEST_LIST:
            yield f"its {name} is {shown(text)}, expected at most {LONGEST_LIST:,} characters that can be printed"


def _metrics(record: Record) -> Iterator[str]:
    """Metrics that no evaluator has, that contradict each other or lie outside of their intervals."""
    if record.metric_version != METRIC_VERSION:
        yield f"its metrics are of definitions {record.metric_version}, expected {METRIC_VERSION}: rescore it"
    if HEADLINE not in record.metrics:
        yield f"it does not have {HEADLINE}, by which tables rank: `xmcbench rescore {record.key} --metrics {HEADLINE}`"
    if not record.metrics or not re.fullmatch(DIGEST, record.truth_hash):
        yield "it has no metrics, or does not name the truth that they answer to"
    try:
        check_metrics(record.metrics)
        find_evaluators(list(record.metrics))
    except XMCBenchError as problem:
        yield str(problem)
    for name, (low, high) in record.intervals.items():
        if not low - ROUNDING <= record.metrics.get(name, -1.0) <= high + ROUNDING:
            yield f"its interval of {name} is {low:.4f} to {high:.4f}, without its value"


def _plugin(record: Record) -> Iterator[str]:
    """Code that nobody can look at: a plugin outside of every repository, or with changes that no commit holds."""
    if record.trial.distribution == OWN and not record.code_digest:
        return  # accepted before the plugin's code was noted: it is part of the commit
    git = record.provenance.get("plugin", {}).get("git", {})
    if not re.fullmatch(COMMIT, git.get("commit", "")):
        yield "the code of its plugin is in no git repository, expected a commit"
    elif git.get("dirty") is not False:
        yield "the code of its plugin had changes that no commit holds, expected a clean git tree"


def _gaps(record: Record) -> Iterator[str]:
    """Missing provenance, and provenance of another trial or of none."""
    provenance, trial = record.provenance, record.trial
    for name in NEEDED:
        if not provenance.get(name):
            yield f"its provenance does not say {name}"
    git: dict[str, Any] = provenance.get("git") or {}
    if git and not re.fullmatch(COMMIT, git.get("commit", "")):
        yield f"its commit is {git.get('commit')!r}, expected 40 hexadecimal digits"
    if git.get("dirty") is not False:
        yield "the code it ran with had changes that no commit holds, expected a clean git tree"
    if (program := PurePath([*provenance.get("command", ()), ""][0]).name) not in ("", OWN):  # a reader may run it
        yield f"its command runs {shown(program)}, expected {OWN}"
    for name, how in provenance.get("checks", {}).items():
        if how not in CHECKS.get(name, ()):
            yield f"its check {shown(name)} was made by {shown(how)}, which the harness never says"
    if "" in provenance.get("versions", {}) or not re.fullmatch(r"3\.\d+\S*", provenance.get("python", "")):
        yield f"its provenance names Python {shown(provenance.get('python'))}, or a version of a package without a name"
    if trial.distribution == OWN and trial.version != provenance.get("versions", {}).get(OWN, trial.version):
        yield f"its version is {shown(trial.version)}, its provenance has {OWN} {shown(provenance['versions'][OWN])}"
    cores = provenance.get("cores", MOST_PROCESSES)
    if not max(provenance.get("cores_usable", 0), provenance.get("torch_threads", 0)) <= cores <= MOST_PROCESSES:
        yield f"its provenance names more threads or usable cores than its {cores:,} cores"
    if not 0 < (gpus := provenance.get("gpus", 1)) <= MOST_PROCESSES:
        yield f"its provenance names {gpus:,} GPUs"
    if "predictions" in provenance and not isinstance(trial.budget, UnknownBudget):
        yield "its predictions were made by another program"
    if record.code_digest and not re.fullmatch(DIGEST, record.code_digest):
        yield f"its plugin's digest is {shown(record.code_digest)}, expected 64 hexadecimal digits"
    if record.without_secrets() != record:
        yield "it holds a secret: a key, a token or a password"
    yield from _dates(record)


def _dates(record: Record) -> Iterator[str]:
    """Times that are not written as the harness writes them, or outside of the years in which trials can have run.

    The page sorts results by these texts.
    """
    passed = elapsed(record)
    if passed is None or not all(re.fullmatch(TIME, text) for text in (record.started, record.ended)):
        yield "it does not say when it began and ended, in UTC and to the second"
        return
    began, ended = datetime.fromisoformat(record.started), datetime.fromisoformat(record.ended)
    if passed < 0 or began.year < FIRST_YEAR or ended > datetime.now(UTC) + timedelta(days=1):
        yield f"it began at {record.started} and ended at {record.ended}"


def _links(record: Record) -> Iterator[str]:
    """What names other trials, files or parts of the data, and cannot be right."""
    trial = record.trial
    held_out = f"train: {trial.selection.queries} queries held out" if trial.selection else ""
    if held_out and record.selection_split != held_out:
        yield f"its checkpoint was chosen on {shown(record.selection_split)}, its trial says {held_out}"
    if not held_out and record.selection_split.startswith("train:"):
        yield f"its checkpoint was chosen on {shown(record.selection_split)}, and its trial holds no queries out"
    if record.trained_by and (record.trained_by == record.key or not re.fullmatch(KEY, record.trained_by)):
        yield f"it was trained by {shown(record.trained_by)}, expected a key of another trial"
    for name, digest in record.digests.items():
        if name not in (PREDICTIONS, RESAMPLED) or not re.fullmatch(DIGEST, digest):
            yield f"it has the digest {shown(digest)} of {shown(name)}, expected SHA-256 of {PREDICTIONS}, {RESAMPLED}"
    yield from _tuning(record)


def _tuning(record: Record) -> Iterator[str]:
    """A tuning that no run of the harness leaves behind."""
    chosen, samples = record.chosen, record.chosen.get("samples", [])
    if not chosen:
        return
    if missing := sorted(ChosenFields.__annotations__.keys() - chosen.keys()):
        yield f"its tuning does not say {missing[0]}"
        return
    keys = [sample["trial"] for sample in samples]
    if not keys or len({*keys}) < len(keys) or not all(re.fullmatch(KEY, key) for key in keys):
        yield "its tuning names no samples, one twice, or samples that are no keys of trials"
    if not re.fullmatch(r"train: [0-9]+ queries held out", chosen["on"]):
        yield f"its tuning chose on {shown(chosen['on'])}, expected held-out training queries"
    if not _holds(
        record.trial.config, {name: own for name, own in chosen["settings"].items() if name in record.trial.config}
    ):
        yield "its tuning chose other settings than it has"
    means = [
        fmean((sample["quality"], *sample.get("again", ())))
        for sample in samples
        if sample["settings"] == chosen["settings"] and sample["quality"] is not None
    ]
    if not any(abs(mean - chosen["quality"]) <= ROUNDING for mean in means) or not 0 <= chosen["quality"] <= 1:
        yield f"its tuning found a quality of {chosen['quality']:g}, which none of its samples with these settings has"
    if unknown := sorted(chosen["spent"].keys() - {*CURVE_COSTS, "teacher_calls"}):
        yield f"its tuning spent {shown(unknown[0])}, expected some of {', '.join(CURVE_COSTS)}"
    if not chosen["spent"]:
        yield "its tuning does not say what it spent"


def _holds(config: Any, settings: Any) -> bool:
    """Whether a configuration with all defaults has these settings, which may leave out what is not set."""
    if isinstance(config, Mapping) and isinstance(settings, Mapping):
        return all(name in config and _holds(config[name], value) for name, value in settings.items())
    return bool(config == settings)


ABSENT = "no such setting"
ALIKE = str.maketrans("015i", "olsl")  # digits and letters that are read as others


def label_problems(trial: Trial) -> Iterator[str]:
    """What in a label is not true of its trial."""
    first = stem(trial.label)
    if owner := _owner(first, trial):
        yield f"its label is {shown(trial.label)}, the name of another method: {owner}"
    for axis, said in _swept(trial.label):
        value: object = trial.config
        for part in axis.split("."):
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        if axis.partition(".")[0] != "budget" and not isinstance(value, dict | list) and value != said:
            yield f"its label says {shown(axis)} is {shown(said)}, its settings have {shown(value)}"


def _owner(first: str, trial: Trial) -> str:
    """The other method that a label names or begins with, unless the settings name it too; empty if there is none."""
    if first == trial.method and trial.distribution == OWN:
        return ""  # the name of a method of ours may begin with that of another
    words = re.findall(r"[^\W_]+", first)
    beginnings = {_read("".join(words[:count])) for count in range(1, len(words) + 1)}
    used = {text for text, _ in walk(trial.config) if isinstance(text, str)} | {trial.method}
    for method in methods().methods:
        names = {_read(name) for name in (method.name, method.plugin, *method.labels) if name}
        own = method.plugin or method.of
        named = _read(first) in names and own != trial.method
        if (named or (names & beginnings and own not in used)) and not _foreign(method, trial):
            return method.name
    return first if first != trial.method and _registered(first) else ""


def _foreign(method: NamedMethod, trial: Trial) -> bool:
    """Whether the trial may be of somebody's plugin for a method that xmcbench knows by its printed figures alone."""
    return trial.distribution != OWN and not (method.plugin or method.of)


def _read(name: str) -> str:
    """A name as a hurried reader sees it."""
    return folded(name).translate(ALIKE).replace("rn", "m").replace("vv", "w")


def _swept(label: str) -> Iterator[tuple[str, object]]:
    """The settings that a label of a sweep names, with their values."""
    for pair in re.split(r",(?=[\w.]+=)", label.partition("[")[2].removesuffix("]")):
        axis, equals, text = pair.partition("=")
        if equals:
            try:
                yield axis, json.loads(text)
            except json.JSONDecodeError:
                yield axis, text
