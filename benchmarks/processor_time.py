"""Accepted trials of the studies whose processors took far longer than their counts predict, and in which stages.

    python benchmarks/processor_time.py --markdown docs/analysis.md

One row for each method of which a trial is above the limit of `xmcbench_plugins.analysis.processor_time`.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from report import options, put
from studies import STUDIES
from tabulate import tabulate

from xmcbench.trial.budget import BUDGETED_STAGES
from xmcbench.trial.record import Record
from xmcbench.trial.store import Store
from xmcbench_plugins.analysis.processor_time import ProcessorTime, processor_time
from xmcbench_plugins.board.results import ACCEPTED

MARK = "<!-- table of processor_time.py -->"
LARGE = 0.1  # of the seconds: smaller stages are not named
Judged = list[tuple[Record, ProcessorTime]]


def judged() -> dict[tuple[str, str, str], Judged]:
    """The trials of the studies, by dataset, suite and label, that others with the same encoder predict."""
    on_dataset = defaultdict[str, list[Record]](list)
    for record in Store(ACCEPTED).records():
        on_dataset[record.trial.dataset].append(record)
    known = defaultdict[tuple[str, str, str], Judged](list)
    for study in STUDIES.values():
        others = on_dataset[study.dataset]
        for record in (own for own in others if own.suite == study.suite):
            if (found := processor_time(record, others)) is not None:
                known[study.dataset, study.suite, record.trial.label].append((record, found))
    return known


def stages(records: list[Record]) -> str:
    """The stages of `fit` that take the most, with their shares of its seconds."""
    seconds = defaultdict[str, float](float)
    for record in records:
        spent = record.spent
        for name, taken in (spent.get("stage_cpu_seconds") or spent["stage_seconds"]).items():
            if name in BUDGETED_STAGES:
                seconds[name] += taken
    whole = sum(seconds.values())
    large = sorted(((taken / whole, name) for name, taken in seconds.items() if taken > LARGE * whole), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in large)


def main() -> None:
    given = options(__doc__).parse_args()
    rows, known = [], judged()
    for (dataset, suite, label), trials in sorted(known.items()):
        if any(found.unexplained for _, found in trials):
            ratios = [found.share for _, found in trials]
            rows.append(
                {
                    "dataset": dataset, "suite": suite, "trial": label, "ratio": f"{median(ratios):.2f}",
                    "range": f"{min(ratios):.2f} to {max(ratios):.2f}",
                    "predicted from": f"{trials[0][1].trials} trials", "stages": stages([own for own, _ in trials]),
                }
            )  # fmt: skip
    print(table := tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True))
    said = f"{len(known) - len(rows)} other methods of these suites have no trial above the limit."
    print(said)
    if given.markdown:
        put(f"{table}\n\n{said}", given.markdown, MARK)


if __name__ == "__main__":
    main()
