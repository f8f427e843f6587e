"""Tables as commands print them, without what differs from run to run."""

from __future__ import annotations

import re

VARYING = {"seconds", "ms/query", "memory"}  # columns of times and memory


def stable(text: str) -> list[str]:
    """The lines of a text, runs of spaces as one; tables without the columns of times and memory.

    >>> stable("#  P@1  seconds\\n-  ---  -------\\n1  0.5      2.0")
    ['# P@1', '- ---', '1 0.5']
    """
    lines = text.strip().splitlines()
    found, spans = [], []
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if re.fullmatch(r"-+( +-+)+", below):
            columns = [match.span() for match in re.finditer("-+", below)]
            spans = [(start, end) for start, end in columns if line[start:end].strip() not in VARYING]
            # A column of text is wider than its dashes only at the end of a line, where nothing follows.
            spans = [(start, None if (start, end) == columns[-1] else end) for start, end in spans]
        if not line:
            spans = []
        kept = " ".join(line[start:end] for start, end in spans) if spans else line
        found.append(" ".join(re.sub("-{2,}", "---", kept).split()))
    return found
