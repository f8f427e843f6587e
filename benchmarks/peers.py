"""What users wait for, beside a peer or a limit, in one run and one table. `docs/performance.md` keeps the results.

Each subject is a file of `cases/`, which runs in a process of its own and measures both sides in turns. A subject whose
peer is not installed is measured without it or left out. Run it with nothing beside it.

    pip install -e '.[bench,cpu,minilm]'
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR                  # DIR: a dataset of short texts
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR --only commands search
    GOMP_SPINCOUNT=3000 python benchmarks/peers.py --data DIR --markdown docs/performance.md
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from report import Rows, alone, options, report

SUBJECTS = ("commands", "steps", "all_labels", "evaluation", "texts", "search")


@dataclass(frozen=True)
class Result:
    """A measured value, what is wanted of it, and the value of the peer or limit to compare it with."""

    what: str
    value: float
    unit: str
    wanted: str
    peer: str = ""
    of_peer: float | None = None

    def row(self) -> dict[str, str]:
        """As a table shows it: the value with its unit, the peer with its value."""
        found = {"what": self.what, "value": f"{self.value:.3g} {self.unit}", "peer": self.peer, "ratio": ""}
        if self.of_peer:
            found |= {"peer": f"{self.peer} {self.of_peer:.3g}", "ratio": f"{self.value / self.of_peer:.3g}"}
        return found | {"wanted": self.wanted}


@dataclass(frozen=True)
class Places:
    """Where a subject finds a dataset of short texts, and where it may write."""

    data: Path
    out: Path
    quick: bool  # small sizes: whether the cases work
    dexml: Path | None  # a clone of DEXML's public code


def measured(subject: str, places: Places) -> Rows:
    """The rows of a subject, or the reason why it has none."""
    print(f"{subject} ...", file=sys.stderr, flush=True)
    try:
        return [result.row() for result in import_module(f"cases.{subject}").results(places)]
    except (RuntimeError, ImportError, subprocess.CalledProcessError) as problem:
        return [{"what": subject, "peer": f"not measured: {problem}"}]


def shown(row: dict[str, str]) -> dict[str, str]:
    """The row in the document, which says in words what was wanted; nothing of a subject that was not measured."""
    return {name: text for name, text in row.items() if name != "wanted"} if "value" in row else {}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=SUBJECTS, help="the others stay in the file")
    parser.add_argument("--data", type=Path, required=True, help="a dataset of short texts, in any layout that is read")
    parser.add_argument("--dexml", type=Path, help="a clone of github.com/nilesh2797/DEXML, the peer of all labels")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a trial of the cases themselves")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        places = Places(asked.data.absolute(), Path(scratch), asked.quick, asked.dexml)
        rows = [row for subject in asked.only for row in alone(measured, subject, places)]
    report("peers", rows, asked.markdown, shown, by=("what",))


if __name__ == "__main__":
    main()
