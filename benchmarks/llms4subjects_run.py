"""Write the released run of a system in the LLMs4Subjects collection as predictions that `xmcbench score` reads.

    python benchmarks/llms4subjects_run.py CLONE DATA/lf-tibkat-gnd-38k run.txt
    xmcbench score run.txt --dataset lf-tibkat-gnd-38k --as system-2 --metrics P@1,P@5,R@5,F1@5 --data DATA

A run has a file per record with its subjects, best first. Subjects that are no label of the dataset (no training record
has them) are left out, so that those behind them move up; the share of such subjects is printed, and what P would be if
they kept their places.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from xmcbench.data.text_files import open_binary

RUN = "evaluation/system2/output"


def lines(folder: Path, name: str) -> list[dict[str, object]]:
    """The objects of a JSON file of the dataset, plain or .gz."""
    path = folder / name
    with open_binary(path if path.exists() else path.with_name(f"{name}.gz")) as file:
        return [json.loads(line) for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    ids = {str(label["uid"]): number for number, label in enumerate(lines(asked.dataset, "lbl.json"))}
    predicted = {path.stem: json.loads(path.read_bytes()) for path in (asked.clone / RUN).rglob("*.json")}
    written, answered, unknown, total = [], 0, 0, 0
    hits = {1: 0, 5: 0}  # with places kept
    rows = lines(asked.dataset, "tst.json")
    for row in rows:
        subjects = predicted.get(str(row["uid"]), {}).get("dcterms:subject", [])
        answered += bool(subjects)
        true = set(row["target_ind"])  # type: ignore[call-overload]
        for k in hits:
            hits[k] += len(true & {ids.get(subject, -1) for subject in subjects[:k]})
        known = [ids[subject] for subject in subjects if subject in ids]
        total, unknown = total + len(subjects), unknown + len(subjects) - len(known)
        written.append(" ".join(f"{label}:{1 / (place + 1):.6f}" for place, label in enumerate(known)))
    asked.out.write_text("\n".join(written) + "\n", encoding="utf-8")
    print(
        f"{len(rows):,} test records, {answered:,} of them answered; {unknown / total:.1%} of the subjects are no label"
    )
    print("with places kept: " + ", ".join(f"P@{k} {100 * found / k / len(rows):.2f}" for k, found in hits.items()))


if __name__ == "__main__":
    main()
