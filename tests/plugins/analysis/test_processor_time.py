"""Work that a trial does and does not count makes it take longer than its counts predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reporting.made import record

from xmcbench.trial.record import Record
from xmcbench_plugins.analysis.processor_time import FEWEST, processor_table, processor_time

COSTS = np.array([2e-9, 3e-5, 1e-3])  # seconds of an operation, a token and a step


def trial(label: str, times: float = 1.0, **changes: Any) -> Record:
    """A trial with counts of its own, that takes so many times what they cost."""
    counts = np.random.default_rng(list(label.encode())).integers(1, 50, 3) * [10**9, 10**4, 100]
    spent = dict(zip(("flops", "encoder_tokens", "steps"), counts.tolist(), strict=True))
    spent |= {"encoder_flops": spent["flops"], "scoring_flops": 0, "fit_cpu_seconds": times * float(counts @ COSTS)}
    return record(label, **{"spent": spent | changes.pop("spent", {}), **changes})


OTHERS = [trial(f"other {number}") for number in range(FEWEST)]


@pytest.mark.parametrize("times", [1.0, 2.4])
def test_the_share_is_what_it_takes_over_what_others_take(times: float) -> None:
    found = processor_time(trial("own", times), OTHERS)
    assert found is not None
    assert found.share == pytest.approx(times, rel=1e-6)
    assert found.unexplained == (times > 1.5)
    assert ("above 1.5" in str(found)) == (times > 1.5)


def test_trials_that_compute_beside_formulas_do_not_predict() -> None:
    slow = [trial(f"module {number}", 9.0, spent={"module_flops": 1, "flops": 10**12}) for number in range(9)]
    found = processor_time(trial("own"), [*OTHERS, *slow, *(trial("own", 9.0, seed=seed) for seed in range(9))])
    assert found is not None
    assert found.share == pytest.approx(1.0, rel=1e-6)


def test_nothing_is_said_without_enough_others_or_without_counts() -> None:
    own = trial("own")
    assert processor_time(own, OTHERS[1:]) is None
    assert processor_time(trial("own", spent={"not_counted": ["flops"]}), OTHERS) is None
    assert processor_time(own, [trial(str(seed), dataset="another") for seed in range(9)]) is None
    assert processor_table([("own", own)], OTHERS[1:]) is None


def test_the_table_says_which_trials_want_an_explanation() -> None:
    table = processor_table([("plain", trial("plain")), ("slow", trial("slow", 3.0))], OTHERS)
    assert table is not None
    assert [row[3] for row in table.rows] == ["1.00", "3.00"]
    assert [note for note in table.notes if note.startswith("slow: ")] == [
        "slow: processors took 3.00 times what its counts predict, above 1.5: what takes it?"
    ]
