"""Judging with the answers at hand: pairs a second, and the size of the database per million judgements.

A teacher of no thought answers first ("cold": asked, kept and charged), then the same pairs are put by another trial:
when its process has not seen the texts yet ("first look"), and when it has ("warm"). "dict" is what a plain Python
dictionary of pairs in memory takes for the same look-ups.

    python benchmarks/judging.py --documents 30000 --labels 30000 --each 35
    python benchmarks/judging.py --documents 2000 --labels 2000 --each 10  # a quick look
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from report import options, report

from xmcbench.teachers import Answers, Pairs, Teacher
from xmcbench.teachers.account import Account, ChargedPairs
from xmcbench.teachers.cached_judge import CachedJudge
from xmcbench.teachers.database import FILE, JudgementStore
from xmcbench.trial.budget import Budget, Ledger


class Thoughtless(Teacher):
    """Answers at once."""

    name = "thoughtless"
    summary = "for this benchmark"

    @property
    def at_once(self) -> int:
        return 65_536

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        places = np.arange(len(pairs))
        tokens = np.full(len(pairs), 500), np.ones(len(pairs), np.int64)
        yield Answers(places, (places % 3 == 0).astype(np.int8), np.full(len(pairs), 0.9, np.float32), *tokens)


def judge(root: Path, trial: str, documents: list[str], labels: list[str]) -> CachedJudge:
    charged = ChargedPairs(root / trial / "charged.bin", 0)
    account = Account(Ledger(), Budget(steps=1), lambda: charged)
    teacher = Thoughtless(Teacher.Config(name="thoughtless"))
    return CachedJudge(teacher, 0, JudgementStore(root), documents, np.arange(len(documents)), labels, account)


def timed(what: Any, *arguments: Any) -> tuple[float, float]:
    """Seconds on the wall and of this process: the second are the same on a machine that has other things to do."""
    start = time.perf_counter(), time.process_time()
    what(*arguments)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def measure(root: Path, documents: int, labels: int, each: int, words: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"word{i}" for i in range(5000)])
    texts = [" ".join(row) for row in vocabulary[rng.integers(5000, size=(documents, words))]]
    names = [f"{' '.join(vocabulary[rng.integers(5000, size=3)])} {i}" for i in range(labels)]
    document_ids = np.repeat(np.arange(documents), each)
    label_ids = np.concatenate([rng.choice(labels, each, replace=False) for _ in range(documents)])
    size = len(document_ids)
    with judge(root, "first", texts, names) as first:  # closed, it leaves one file
        cold = timed(first, document_ids, label_ids)
    files = sum(path.stat().st_size for path in root.glob(f"{FILE}*"))
    text_bytes = sum(map(len, texts)) + sum(map(len, names))
    second = judge(root, "second", texts, names)
    look = timed(second, document_ids, label_ids)
    warm = timed(second, document_ids, label_ids)
    known = dict.fromkeys(zip(document_ids.tolist(), label_ids.tolist(), strict=True), 1)
    pairs = list(known)
    plain = timed(lambda: [known[pair] for pair in pairs])
    seconds = {"cold": cold, "first look": look, "warm": warm, "dict": plain}
    return [
        {
            "case": case,
            "pairs": size,
            "seconds": wall,
            "CPU seconds": busy,
            "pairs/CPU s": size / busy,
            "to dict": busy / plain[1],
            "MB per million, texts apart": (files - text_bytes) / size if case == "cold" else None,
            "MB of texts": text_bytes / 1e6 if case == "cold" else None,
        }
        for case, (wall, busy) in seconds.items()
    ]


def main() -> None:
    arguments = options(
        __doc__, documents=30_000, labels=30_000, each=(35, "labels a document"), words=(60, "words a document"),
    ).parse_args()  # fmt: skip
    with TemporaryDirectory() as root:
        sizes = arguments.documents, arguments.labels, arguments.each, arguments.words
        report("judging", measure(Path(root), *sizes), arguments.out)


if __name__ == "__main__":
    main()
