"""What a record must be like to be accepted, as far as the record alone shows.

A digest is a checksum: whoever edits a record can write a new one. So all that can be compared is compared: the key
with the trial, sums with their parts, costs with the budget, versions with this code; and
`xmcbench_plugins/board/recount.py` counts the steps, tokens and operations again. Seconds, memory and what the texts of
a record claim are statements of the submitter, and nothing here judges whether they are plausible.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import PurePath
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from xmcbench.errors import UnknownNameError, XMCBenchError, shown
from xmcbench.evaluation import check_metrics, find_evaluators
from xmcbench.plugins.registry import OWN, UNPACKAGED, registry
from xmcbench.reporting.names import named_methods, stem
from xmcbench.reporting.rows import CURVE_COSTS
from xmcbench.reporting.text_table import printable
from xmcbench.reporting.words import chosen_on, end_of_training
from xmcbench.suite.tables import RANKS
from xmcbench.trial.budget import CAPS, STAGES, Ledger, UnknownBudget, over_budget
from xmcbench.trial.facts import Choice, ChosenBy, ChosenFields, Ended, is_flat, why_ended
from xmcbench.trial.method import code_versions
from xmcbench.trial.record import COUNTED, METRIC_VERSION, OUTSIDE, Record, Status
from xmcbench.trial.record_fields import walk
from xmcbench.trial.store import MODEL, PREDICTIONS, RESAMPLED
from xmcbench.trial.trial import SCHEMA_VERSION, Selection, Trial, flatten
from xmcbench.trial.versions import ENGINE_VERSION, SECONDS_VERSION, SELECTION_VERSION, charge_part, harness_versions

NEEDED = ("git", "versions", "python", "platform", "cpu", "cores_usable", "memory_bytes", "command")
KEY, COMMIT, DIGEST = r"[0-9a-f]{16}", r"[0-9a-f]{40}", r"[0-9a-f]{64}"
DIGEST_OR_COMMIT = f"{DIGEST}|{COMMIT}"
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00"
MEASURED = (  # from outside of a method
    "fit_seconds", "fit_wait_seconds", "fit_cpu_seconds", "fit_children_cpu_seconds", "predict_cpu_seconds",
    "predicted_queries", "model_bytes",
)  # fmt: skip
LONGEST_NAME = 100  # characters
# A name that every reader sees alike: no letters of other scripts, invisible characters or markup; values of a sweep.
NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]*( [A-Za-z0-9._+-]+)*(\[[ -~]*\])?"
LONGEST_LIST = 20_000  # characters of texts and lists that are no names


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
    if missing := [name for name in MEASURED if name not in record.spent]:
        yield f"it does not say what the harness measured: {', '.join(missing)}"
    trial, plugin = record.trial, _registered(record.trial.method)
    if plugin is None or plugin.origin.distribution != trial.distribution:
        return
    try:
        config = plugin.thing.Config.model_validate(trial.config)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        yield f"its setting {shown('.'.join(map(str, error['loc'])))} is {shown(error['input'])}: {error['msg']}"
        return
    written, stated = (json.dumps(own, sort_keys=True) for own in (config.model_dump(mode="json"), trial.config))
    if written != stated:  # 16.0 is not 16
        yield "its settings are not all that its method has, as it writes them"
    try:
        metric = trial.selection.metric if trial.selection else None
        chosen_by = harness_versions(metric, trial.budget.spending())
    except UnknownNameError as problem:
        yield str(problem)
        return
    if (parts := {**code_versions(plugin.thing, config, trial.budget), **chosen_by}) != trial.versions:
        yield f"it is a result of {_parts(trial.versions)}, this code has {_parts(parts)}: run it again"


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
    methods = {record.trial.method for record in records}
    data: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # by content: truths and names
    seeds: dict[tuple[str, str], Record] = {}
    for record in records:
        data[record.trial.dataset_hash, "truth"][record.truth_hash] += 1
        data[record.trial.dataset_hash, "dataset"][record.trial.dataset] += 1
        if record.spent.get("encoder_tokens") and (digest := record.digests.get(PREDICTIONS)):
            settings = record.trial.model_dump_json(exclude={"seed", "version", "label"})
            if (same := seeds.setdefault((settings, digest), record)) is not record:
                found[record.key].append(f"it has the predictions of {same.key}, which has another seed")
    for record in records:
        trial, problems = record.trial, found[record.key]
        if trial.label != trial.method and trial.label in methods:
            problems.append(f"its label is {shown(trial.label)}, the name of another method")
        for what, own in (("truth", record.truth_hash), ("dataset", trial.dataset)):
            ((usual, _),) = data[trial.dataset_hash, what].most_common(1)
            if own != usual:
                problems.append(f"its {what} is {shown(own)}, others of its data have {usual}")
        trainer = by_key.get(record.trained_by)
        if record.trained_by and (trainer is None or trainer is record or _training(record) != _training(trainer)):
            problems.append(f"its model is of {record.trained_by}, which is no accepted training of it")
        if before.get(record.key, record) != record:
            problems.append("it differs from the record of this key that was accepted before")
        for sample in record.chosen.get("samples", ()):
            if sample["trial"] in by_key.keys() - {record.key}:  # which the board would leave out
                problems.append(f"its tuning names {sample['trial']}, an accepted trial")
    return found


def _training(record: Record) -> tuple[Any, ...]:
    """What a training was for, and what it spent: trials that share one are alike in it."""
    trial, spent = record.trial, record.spent
    wanted = trial.method, trial.dataset_hash, trial.seed, trial.budget, trial.selection, trial.track
    return *wanted, spent.get("steps"), spent.get("encoder_tokens")


def _identity(record: Record) -> Iterator[str]:
    """A key of another trial, and versions that would make other results those of older code."""
    trial = record.trial
    if record.key_version != SCHEMA_VERSION:
        yield f"it was written by schema version {record.key_version}, expected {SCHEMA_VERSION}: run it again"
    if record.key != trial.key:
        yield f"its key is {record.key}, that of its trial {trial.key}"
    if not re.fullmatch(DIGEST, trial.dataset_hash):
        yield f"it names the content of its dataset {shown(trial.dataset_hash)}, expected 64 hexadecimal digits"
    newest = {"engine": ENGINE_VERSION, "selection": SELECTION_VERSION, charge_part("device_seconds"): SECONDS_VERSION}
    if not isinstance(trial.budget, UnknownBudget) and not trial.versions.get("method"):
        yield "it names no version of its method"
    if plugin := _registered(trial.method):
        newest["method"] = plugin.thing.info.version
        if plugin.origin.distribution != trial.distribution:
            yield f"its method {trial.method!r} is of {trial.distribution}, expected {plugin.origin.distribution}"
    elif trial.distribution == OWN:
        yield f"its method {shown(trial.method)} is none of xmcbench"
    for part, version in trial.versions.items():
        if version > newest.get(part, version):
            yield f"its version of {part} is {version}, the newest is {newest[part]}"


def _texts(record: Record) -> Iterator[str]:
    """Names and texts that a terminal or a page would obey, or that nobody can read."""
    trial = record.trial
    names = {"label": trial.label, "suite": record.suite, "method": trial.method, "dataset": trial.dataset}
    for name, text in (names | {"distribution": trial.distribution, "version": trial.version}).items():
        if len(text) > LONGEST_NAME or not re.fullmatch(NAME, text):
            yield f"its {name} is {shown(text)}, expected Latin letters, digits, single blanks and . _ + -"
    for name, value in flatten(record.model_dump(mode="json")):
        text = " ".join(own for own, _ in walk(value) if isinstance(own, str))
        if not f"{name}{text}".isprintable() or len(name) + len(text) > LONGEST_LIST:
            most = f"at most {LONGEST_LIST:,} characters that can be printed"
            yield f"its {printable(name)} is {shown(text)}, expected {most}"


def _metrics(record: Record) -> Iterator[str]:
    """Metrics that no evaluator has, that contradict each other or lie outside of their intervals."""
    if record.metric_version != METRIC_VERSION:
        yield f"its metrics are of definitions {record.metric_version}, expected {METRIC_VERSION}: rescore it"
    if RANKS not in record.metrics:
        yield f"it does not have {RANKS}, by which tables rank: `xmcbench rescore {record.key} --metrics {RANKS}`"
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
    if record.trial.distribution.startswith(f"{UNPACKAGED}-"):
        yield f"the method {record.trial.method!r} is {UNPACKAGED}, a file or a class of a notebook; expected a package"
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
    if trial.distribution == OWN and trial.version != provenance.get("versions", {}).get(OWN, trial.version):
        yield f"its version is {shown(trial.version)}, its provenance has {OWN} {shown(provenance['versions'][OWN])}"
    if "predictions" in provenance and not isinstance(trial.budget, UnknownBudget):
        yield "its predictions were made by another program"
    if record.code_digest and not re.fullmatch(DIGEST, record.code_digest):
        yield f"its plugin's digest is {shown(record.code_digest)}, expected 64 hexadecimal digits"
    if record.without_secrets() != record:
        yield "it holds a secret: a key, a token or a password"
    if not all(_is_time(text) for text in (record.started, record.ended)):  # pages sort by these texts
        yield "it does not say when it began and ended, in UTC and to the second"
    elif not record.started <= record.ended <= (datetime.now(UTC) + timedelta(days=1)).isoformat():
        yield f"it began at {record.started} and ended at {record.ended}"


def _links(record: Record) -> Iterator[str]:
    """What names other trials, files or parts of the data, and cannot be right."""
    trial = record.trial
    choice, chosen = record.selection_split, f"its checkpoint was chosen on {shown(chosen_on(record.selection_split))}"
    held_out = Choice(by=ChosenBy.HELD_OUT, queries=trial.selection.queries) if trial.selection else None
    if held_out and choice != held_out:
        yield f"{chosen}, its trial says {chosen_on(held_out)}"
    if not held_out and choice.by is ChosenBy.HELD_OUT:
        yield f"{chosen}, and its trial holds no queries out"
    if record.trained_by and (record.trained_by == record.key or not re.fullmatch(KEY, record.trained_by)):
        yield f"it was trained by {shown(record.trained_by)}, expected a key of another trial"
    for name, digest in record.digests.items():
        if name not in (PREDICTIONS, RESAMPLED, MODEL) or not re.fullmatch(DIGEST, digest):
            yield f"it has the digest {shown(digest)} of {shown(name)}, expected SHA-256 of {PREDICTIONS}, {RESAMPLED}"
    for name, digest in {**record.evaluators, **record.pretrained}.items():
        if not re.fullmatch(DIGEST_OR_COMMIT, digest):
            yield f"it has the digest {shown(digest)} of {shown(name)}, expected SHA-256 or a commit"
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
    if chosen["on"].by is not ChosenBy.HELD_OUT:
        yield f"its tuning chose on {shown(chosen_on(chosen['on']))}, expected held-out training queries"
    config = record.trial.config
    if not _holds(config, {name: own for name, own in chosen["settings"].items() if name in config}):
        yield "its tuning chose other settings than it has"
    same = [own for own in samples if own["settings"] == chosen["settings"] and own["quality"] is not None]
    means = [fmean((own["quality"], *own.get("again", ()))) for own in same]
    if not any(abs(mean - chosen["quality"]) <= ROUNDING for mean in means) or not 0 <= chosen["quality"] <= 1:
        yield f"its tuning found a quality of {chosen['quality']:g}, which none of its samples with these settings has"
    if unknown := chosen["spent"].keys() - {*CURVE_COSTS, "teacher_calls"}:
        yield f"its tuning spent {shown(min(unknown))}, expected some of {', '.join(CURVE_COSTS)}"
    if not chosen["spent"]:
        yield "its tuning does not say what it spent"


def _holds(config: Any, settings: Any) -> bool:
    """Whether a configuration with all defaults has these settings, which may leave out what is not set."""
    if isinstance(config, Mapping) and isinstance(settings, Mapping):
        return all(name in config and _holds(config[name], value) for name, value in settings.items())
    return bool(config == settings)


ABSENT = "no such setting"


def label_problems(trial: Trial) -> Iterator[str]:
    """What in a label is not true of its trial."""
    first = stem(trial.label)
    if owner := _owner(first, trial):
        yield f"its label is {shown(trial.label)}, the name of another method: {owner}"
    for pair in re.split(r",(?=[\w.]+=)", trial.label.partition("[")[2].removesuffix("]")):  # the values of a sweep
        axis, equals, text = pair.partition("=")
        said: Any = text
        value: Any = trial.config
        with suppress(json.JSONDecodeError):
            said = json.loads(text)
        for part in axis.split("."):
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        if equals and axis.partition(".")[0] != "budget" and not isinstance(value, dict | list) and value != said:
            yield f"its label says {shown(axis)} is {shown(said)}, its settings have {shown(value)}"


def _owner(name: str, trial: Trial) -> str:
    """The other method that has this name; empty if there is none."""
    for method in named_methods():
        names = {own.casefold() for own in (method.name, method.plugin, *method.labels) if own}
        if name.casefold() in names and trial.method != (method.plugin or method.of) and (method.plugin or method.of):
            return method.name
    return name if name != trial.method and _registered(name) else ""


# Of what a ledger says at least.
LEDGER = ("steps", "encoder_tokens", "flops", "device_seconds", "stage_seconds", "peak_bytes", "largest_step")
AFTER_FIT = ("predict", "check", "score")  # stages
ROUNDING = 1e-6  # of sums and of values kept as float32
ENGINE = "xmcbench.engine."  # whose `fit` is the loop that evaluates on held-out queries
CLOSE = 0.05  # of the budget: between a curve's fraction and what it spent, as clocks go on


def ledger_problems(record: Record) -> Iterator[str]:
    """Costs that are missing, that contradict each other, or that exceed the budget."""
    spent, budget = record.spent, record.trial.budget
    limits = budget.limits()
    if missing := [name for name in dict.fromkeys((*LEDGER, *limits)) if name not in {*spent, *record.not_counted}]:
        yield f"it does not say what it spent of {', '.join(missing)}"
        return
    yield from _not_counted(record)
    for name, more in over_budget(budget, spent).items():
        step = "" if name in CAPS else ", which is more than one step past its budget"
        yield f"it spent {limits[name] + more:g} {name} of {limits[name]:g}{step}"
    for name, step in spent["largest_step"].items():
        if not step <= spent.get(name, 0):
            yield f"its largest step took {step:g} {name}, all steps together {spent.get(name, 0):g}"
    if unknown := {*spent["stage_seconds"], *spent.get("stage_cpu_seconds", ())} - set(STAGES):
        yield f"it spent seconds in the stage {shown(min(unknown))}, expected some of {', '.join(STAGES)}"
    if record.clock == "processor" and spent.get("peak_device_bytes"):
        yield "it computed on a GPU, and its device seconds are those of processors"
    known = {own.name: spent[own.name] for own in fields(Ledger) if own.name in spent}
    ledger = Ledger(**known | {"clock": record.clock})
    for name in ("device_seconds", "flops", "teacher_tokens"):
        if not abs(spent.get(name, 0) - (total := getattr(ledger, name))) <= ROUNDING * max(1, total):
            yield f"it spent {spent.get(name, 0):g} {name}, its parts sum to {total:g}"
    yield from _work(record)
    if "wall_seconds" in spent:
        yield "it was ended from outside"
    if not spent.get("predicted_queries", 1):
        yield "it predicted nothing"
    yield from _workers(record)


def _not_counted(record: Record) -> Iterator[str]:
    """Counts that are said to be unknown, where no outside program computed."""
    spent, noted = record.spent, {*record.spent.get("not_counted", ())}
    if unknown := noted - {*COUNTED}:
        yield f"it did not count {shown(min(unknown))}, expected some of {', '.join(COUNTED)}"
    elif noted & spent.keys():
        yield f"it did not count {min(noted & spent.keys())}, and states it"
    elif noted and not spent.get("fit_children_cpu_seconds", 0.0) > OUTSIDE * spent.get("fit_cpu_seconds", 0.0):
        yield f"it did not count {min(noted)}, and its own process took most of the processor time"


def _work(record: Record) -> Iterator[str]:
    """Steps, tokens, queries and teachers of which one is impossible without the other."""
    spent = defaultdict(int, record.spent)
    steps, tokens, epochs, queries = (spent[name] for name in ("steps", "encoder_tokens", "epochs", "queries"))
    calls = spent["teacher_calls"]
    if (tokens > 0) != (spent["encoder_flops"] > 0):
        yield f"it spent {tokens} encoder_tokens in {spent['encoder_flops']:g} encoder_flops"
    if steps and tokens and not record.num_parameters:
        yield f"it took {steps} steps over {tokens} tokens, and trained no parameters"
    if (epochs > 0) != (queries > 0):
        yield f"it spent {epochs:g} epochs on {queries} queries"
    if spent["pool_positives"] > max(1, queries) * max(1, spent["pool_labels"]):
        yield f"it had {spent['pool_positives']} positives among {spent['pool_labels']} labels"
    if spent["refused_pass"] > 1 or spent["teacher_cached"] > calls:
        yield "it refused more than one pass, or more answers were cached than given"
    unparsed = spent["teacher_unparsed"]
    if unparsed > calls or spent["teacher_cut"] + spent["teacher_refused"] > unparsed:
        yield f"of {calls} calls of its teacher {unparsed} had no answer, or fewer than were cut or refused"
    if (bool(record.teacher) or record.simulated_teacher) != (calls > 0):
        yield f"its teacher is {shown(record.teacher)}, which was asked {calls} times"
    if calls and not any(name == "teacher" for name, _ in walk(record.trial.config)):
        yield f"it asked a teacher {calls} times, and its method has none"


def _workers(record: Record) -> Iterator[str]:
    """Processes and devices of which one contradicts the other."""
    spent, peak = record.spent, record.spent["peak_bytes"]
    own, on_device = (spent.get(name, []) for name in ("worker_bytes", "worker_device_bytes"))
    if record.workers < 1 or spent.get("side_by_side", 1) < 1:
        yield "it ran in no process"
    if {len(own), len(on_device)} - {0, record.workers} or max(own, default=0) > peak:
        named = f"it names the memory of {len(own)} workers of {record.workers}"
        yield f"{named}, at most {max(own, default=0)} bytes of {peak}"
    if spent.get("model_bytes", record.num_parameters) < record.num_parameters:
        yield f"its model of {record.num_parameters:,} parameters has {spent['model_bytes']:,} bytes"


def _is_time(text: str) -> bool:
    """Whether a text is a time of UTC, to the second."""
    with suppress(ValueError):
        return bool(re.fullmatch(TIME, text) and datetime.fromisoformat(text))
    return False


def curve_problems(record: Record) -> Iterator[str]:
    """A curve that falls back, that spent more than the trial, or whose points nobody measured."""
    known = {name for point in record.curve for name in point}
    for name in (name for name in ("fraction", *CURVE_COSTS) if name in known):
        costs = [point.get(name, -1.0) for point in record.curve]
        if costs[0] < 0 or any(not after >= before for before, after in pairwise(costs)):
            yield f"its curve goes back in {name}"
        elif name != "fraction" and not costs[-1] <= record.spent.get(name, 0) * (1 + ROUNDING):
            yield f"its curve spent {costs[-1]:g} {name}, the trial {record.spent.get(name, 0):g}"
    metrics = {name for name in known if "@" in name}
    try:
        find_evaluators(sorted(metrics))
    except XMCBenchError as problem:
        yield f"its curve: {problem}"
    if others := known - metrics - {"fraction", *CURVE_COSTS}:
        yield f"its curve has {shown(min(others))}, expected metrics and costs"
    for point in record.curve:
        if wrong := [name for name, value in point.items() if "@" in name and not 0 <= value <= 1]:
            yield f"its curve has {wrong[0]} of {point[wrong[0]]:g}, expected a fraction"
        if not metrics <= point.keys() or not {*CURVE_COSTS} & point.keys() or point.get("fraction", 0.0) > 2:
            yield "its curve has a point without metrics or costs, or far past the budget"
            break
    if metrics and record.selection_split.by is ChosenBy.NOTHING:
        yield "its curve has metrics, and no queries were held out for them"
    flat = False  # whether the harness ends training here, as the metric no longer rose
    if selection := record.trial.selection:
        yield from _evaluations(record, selection)
        if all(selection.metric in point for point in record.curve):
            flat = is_flat(record.curve, selection.metric, selection.patience, record.lower_is_better)
    if "ended" in record.spent and _plain(record) and not (flat and record.spent["ended"] is Ended.FLAT):
        yield f"it ended early: {end_of_training(record)}, of which curve and settings show nothing"


def _plain(record: Record) -> bool:
    """Whether the harness's training alone spent the budget: stages and parts have their own budgets and curves."""
    plugin = _registered(record.trial.method)
    return plugin is not None and record.trial.distribution == OWN and plugin.thing.fit.__module__.startswith(ENGINE)


def _evaluations(record: Record, selection: Selection) -> Iterator[str]:
    """A curve that is not of the evaluations that its trial asks for, and an end of training that it does not show."""
    spent, curve, limits = record.spent, record.curve, record.trial.budget.spending()
    steps = spent.get("steps", 0)
    if len(curve) > selection.evaluations + 1 or (curve and not steps):
        yield f"its curve has {len(curve)} points of {selection.evaluations} evaluations in {steps:,} steps"
    if curve and selection.metric not in curve[0]:
        yield f"its curve does not have {selection.metric}, which chooses the checkpoint"
        return
    if not (_plain(record) and spent.get("encoder_tokens")):
        return
    least = min(selection.evaluations, steps) - 1
    if len(curve) < least and not why_ended(spent):
        yield f"its curve has {len(curve)} points of {selection.evaluations} evaluations"
    most = max(spent.get(name, 0) / limit for name, limit in limits.items())
    for point in curve:
        share = max((point[name] / limit for name, limit in limits.items() if name in point), default=0.0)
        known = limits.keys() <= point.keys()
        if not share - CLOSE <= point.get("fraction", -1.0) <= (share if known else most) + CLOSE:
            yield f"its curve has spent {share:.0%} of the budget where it says {point.get('fraction', 0.0):.0%}"
            return
