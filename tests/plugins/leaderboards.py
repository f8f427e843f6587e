"""Leaderboards for the page and the figures: measured and published rows, curves, deciles, names that are hostile."""

from __future__ import annotations

import numpy as np
from evaluation.cases import pairs
from reporting.made import failed, record

from xmcbench.data.dataset import Dataset, DatasetCard, Split
from xmcbench.evaluation import rank
from xmcbench.evaluation.analysis import Analysis, analyse, partitions
from xmcbench.reporting.paper_rows import PublishedRow
from xmcbench.reporting.ranked_groups import leaderboard
from xmcbench.reporting.rows import Leaderboard, View
from xmcbench.suite.tables import RANKS
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import Record, Status
from xmcbench_plugins.board.claims import ClaimFile

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">&amp;{{data}}"
METRICS = ("P@1", "P@5", "PSP@5")


def measured(count: int = 6, **changes: object) -> dict[str, Record]:
    """Records by key: figures that no two share, curves, intervals; a hostile name; a failure."""
    found = []
    for i in range(count):
        figures = {name: 0.9 - 0.61 * i / count - 0.1 * at for at, name in enumerate(METRICS)}
        spent = {"encoder_tokens": 10_000 * (i + 1), "steps": 10, "device_seconds": 5.5 + i, "peak_bytes": 10**9}
        curve = [
            {
                "fraction": f,
                "steps": 10 * f,
                "encoder_tokens": f * spent["encoder_tokens"],
                "P@1": f * figures["P@1"],
                "P@5": f * figures["P@5"],
            }
            for f in (0.5, 1.0)
        ]
        given = {
            "metrics": figures,
            "spent": spent,
            "curve": curve,
            "config": {"batch_size": 64 * (i + 1)},
            "intervals": {name: (figures[name] - 0.02, figures[name] + 0.02) for name in ("P@1", RANKS)},
        }
        found.append(record(f"method-{i}", **{**given, **changes}))
    found.append(record(HOSTILE, metrics=dict.fromkeys(METRICS, 0.123456), **changes))  # type: ignore[arg-type]
    found.append(failed("fails", Status.OOM, config={"batch_size": 10**6}, **changes))
    return {each.key: each for each in found}


def published(dataset: str = "made") -> list[PublishedRow]:
    """Two rows of a paper, one of them with a link that must not become one."""
    row = PublishedRow(
        dataset=dataset,
        method="DEXML",
        paper="dexml",
        table="Table 1",
        citation="somebody, somewhere",
        url="https://example.org/paper",
        metrics={"P@1": 0.584, "P@5": 0.4546},
        intervals={},
        printed={"P@1": "58.40", "P@5": "45.46"},
        place="dexml.yaml:1",
        batch_size=8192,
        negative_pool=1_305_265,
        hardware="16 x A100",
        training_hours=66.0,
    )
    bad = {
        "method": "ANCE",
        "variant": HOSTILE,
        "url": "javascript:document.title='taken'",
        "metrics": {"P@1": 0.1, "P@5": 0.05},
        "printed": {"P@1": "10.0", "P@5": "5.0"},
    }
    return [row, row.model_copy(update=bad)]


def claims(records: dict[str, Record]) -> ClaimFile:
    """A claim that the trials of the first two records are about."""
    first, second = list(records)[:2]
    column = {
        "metric": "P@1",
        "better": "52.00",
        "than": "50.00",
        "difference": "+2.00",
        "interval": ("+1.00", "+3.00"),
    }
    scale = {"dataset": "made", "labels": 9, "encoder": "nano", "length": "2 epochs"}
    regime = {"suite": "tests", "better": "method-0", "than": "method-1", "scale": scale, "finding": "seen"}
    regime |= {"columns": ({**column, "sign": "+"},), "better_keys": (first,), "than_keys": (second,)}
    paper = {"table": "dexml Table 1", "better": "DEXML", "than": "ANCE"}
    claim = {"id": "dexml-wins", "claim": "DEXML wins", "paper": paper, "shown": "P@1", "regimes": (regime,)}
    question = {"id": "why", "question": "why", "regime": {**regime, "finding": "undecided"}}
    return ClaimFile.model_validate({"claims": (claim,), "questions": (question,)})


def table(records: dict[str, Record]) -> Leaderboard:
    """All rows of two datasets and two budgets."""
    cited = [*published(), *published("other-set")]
    return leaderboard(records.values(), cited, View(), claims=claims(records).claims)


def board() -> tuple[dict[str, Record], Leaderboard]:
    """Records of two budgets on one dataset and of another dataset, and the table of them and of published rows."""
    records = (
        measured() | measured(2, budget=Budget(encoder_tokens=5000)) | measured(3, dataset="zoo", dataset_hash="z")
    )
    return records, table(records)


def analysed(records: dict[str, Record]) -> dict[str, Analysis]:
    """An analysis for each scored record of the dataset `made`."""
    rng = np.random.default_rng(0)
    truth = pairs([set(rng.choice(30, 3, replace=False).tolist()) for _ in range(40)], 30)
    card = DatasetCard(name="made", num_train=40, num_test=40, num_labels=30)
    nothing = pairs([set()] * 40, 30)
    data = Dataset(card, Split([""] * 40, truth), Split([""] * 40, truth), [""] * 30, nothing, nothing)
    bins = partitions(data, np.linspace(0, 1, 30))
    found = {}
    for key, each in records.items():
        if each.trial.dataset == "made" and each.metrics:
            scores = rng.normal(size=(40, 30)) + truth.toarray()
            found[key] = analyse(rank(np.tile(np.arange(30), (40, 1)), scores, 10), data, bins)
    return found


def many(count: int) -> dict[str, Record]:
    """That many records of one dataset and budget."""
    first = record("method")
    made = {}
    for i in range(count):
        trial = first.trial.model_copy(update={"label": f"method-{i}", "config": {"number": i}})
        made[f"{i:016x}"] = first.model_copy(update={"trial": trial, "key": f"{i:016x}", "metrics": {"P@1": i / count}})
    return made
