"""Names of submissions that a reader can tell apart: no look-alikes, invisible characters or marks of the board."""

from __future__ import annotations

import re
import unicodedata

from xmcbench.reporting.notes import EVERY
from xmcbench.trial.record import Status

LONGEST = 200  # characters of a name
KINDS = frozenset("LNPM")  # letters, numbers, punctuation and marks on letters
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
    strange = [letter for letter in name if not (letter.isascii() or unicodedata.category(letter)[0] in KINDS)]
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
