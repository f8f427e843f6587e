"""Names of submissions that a reader can tell apart, and labels that say what a trial is.

No look-alikes, invisible characters or marks of the board; no other method's name, no other value of a setting.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

from xmcbench.errors import UnknownNameError, shown
from xmcbench.plugins.registry import OWN, registry
from xmcbench.reporting.curated import NamedMethod, methods, stem
from xmcbench.reporting.notes import EVERY
from xmcbench.reporting.numbers import folded
from xmcbench.trial.record import Status
from xmcbench.trial.trial import Trial

LONGEST = 200  # characters of a name
ALLOWED = frozenset("LNPM")  # letters, numbers, punctuation and marks on letters
MARKS_ON_A_LETTER = 2
CROWDED = re.compile(f"[\u0300-\u036f]{{{MARKS_ON_A_LETTER + 1}}}")
ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK"})  # scripts with letters that look the same
# Letters and marks that show nothing (Unicode, Default_Ignorable_Code_Point).
INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def illegible(name: str) -> str:
    """What is wrong with a name, in words; empty if nothing is."""
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST or not name.isprintable():
        return f"expected at most {LONGEST} characters that can be printed"
    if name != " ".join(name.split()) or name != unicodedata.normalize("NFKC", name):
        return "expected single blanks and characters in normal form (NFKC)"
    strange = [letter for letter in name if not (letter.isascii() or unicodedata.category(letter)[0] in ALLOWED)]
    if strange or INVISIBLE.search(name) or EVERY & {*name}:
        return "expected letters, digits and punctuation, no symbols or marks of the leaderboard"
    if CROWDED.search(name):
        return f"expected at most {MARKS_ON_A_LETTER} marks on a letter"
    for word in re.findall(r"[^\W\d_]+", name):
        scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word} & ALIKE
        if len(scripts) > 1:
            return f"expected letters of one script in a word, found {' and '.join(sorted(scripts))}"
    if name.endswith(tuple(f"({status})" for status in Status)):
        return "expected no status in it"
    return ""


MARKS = frozenset({"verified", "published", "claimed", "recounted"})  # words by which the board vouches for a row
ABSENT = "no such setting"
READ_ALIKE = str.maketrans("01$5", "olss")  # digits that are read as letters


def label_problems(trial: Trial) -> Iterator[str]:
    """What in a label is not true of its trial."""
    first = stem(trial.label)
    if marks := sorted(MARKS & {*re.findall(r"[a-z]+", first.casefold())}):
        yield f"its label is {shown(trial.label)}: {marks[0]} is a word of the leaderboard"
    if owner := _owner(first, trial):
        yield f"its label is {shown(trial.label)}, the name of another method: {owner}"
    for axis, said in _swept(trial.label):
        value: object = trial.config
        for part in axis.split("."):
            value = value.get(part, ABSENT) if isinstance(value, dict) else ABSENT
        if axis.partition(".")[0] != "budget" and not isinstance(value, dict | list) and value != said:
            yield f"its label says {shown(axis)} is {shown(said)}, its settings have {shown(value)}"


def _owner(first: str, trial: Trial) -> str:
    """The other method that a label names; empty if it names none."""
    for method in methods().methods:
        own = method.plugin or method.of
        names = (method.name, method.plugin, *method.labels)
        if _read(first) in map(_read, names) and trial.method != own and not _foreign(method, trial):
            return method.name
    try:
        registry().method(first)
    except UnknownNameError:
        return ""
    return first if first != trial.method else ""


def _foreign(method: NamedMethod, trial: Trial) -> bool:
    """Whether the trial may be of somebody's plugin for a method that xmcbench knows by its printed figures alone."""
    return trial.distribution != OWN and not (method.plugin or method.of)


def _read(name: str) -> str:
    """A name as a hurried reader sees it."""
    return folded(name).translate(READ_ALIKE)


def _swept(label: str) -> Iterator[tuple[str, object]]:
    """The settings that a label of a sweep names, with their values."""
    for pair in re.split(r",(?=[\w.]+=)", label.partition("[")[2].removesuffix("]")):
        axis, equals, text = pair.partition("=")
        if equals:
            try:
                yield axis, json.loads(text)
            except json.JSONDecodeError:
                yield axis, text
