"""Whether a trial is over its budget is decided by one function, and everything that says so says the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from reporting.made import record

from xmcbench.runs.plan import explain
from xmcbench.trial.budget import Budget, Ledger, over_budget
from xmcbench.trial.record import Record, Status
from xmcbench_plugins.analysis.suite_tables import check_equal_budgets
from xmcbench_plugins.board.acceptance import ledger_problems

ROOT = Path(__file__).parents[3]
LIMIT = 2_000_000


def trial(tokens: int, status: Status = Status.OK) -> Record:
    """A trial of 100 steps, the largest of which took a million tokens."""
    ledger = Ledger(steps=100, encoder_tokens=tokens, encoder_flops=1, largest_step={"encoder_tokens": 1_000_000})
    return record("greedy", spent=ledger.as_dict(), budget=Budget(encoder_tokens=LIMIT), status=status)


@pytest.mark.parametrize(("tokens", "is_over"), [(2_050_000, False), (2_600_000, True)])
def test_all_say_the_same_of_a_trial_past_its_budget(tokens: int, is_over: bool) -> None:
    own = trial(tokens)
    more = over_budget(own.trial.budget, own.spent)
    assert more == ({"encoder_tokens": tokens - LIMIT} if is_over else {})
    ledger = Ledger(steps=100, encoder_tokens=tokens, largest_step={"encoder_tokens": 1_000_000})
    assert ledger.over(own.trial.budget) == more
    assert any("past its budget" in problem for problem in ledger_problems(own)) == is_over
    (line,) = check_equal_budgets([own], "encoder_tokens")
    assert line.startswith("UNEQUAL" if is_over else "equal")
    text = "over_budget: " + ("encoder_tokens 2.6e+06 of 2e+06" if is_over else "")
    assert explain(trial(tokens, Status.OVER_BUDGET)) == text


def test_only_the_rule_itself_reads_what_a_step_may_excuse() -> None:
    """Nothing else adds a largest step to a limit: whoever needs the verdict or the step calls the functions."""
    readers = set()
    for path in [*ROOT.glob("xmcbench/**/*.py"), *ROOT.glob("plugins/**/*.py")]:  # benchmarks print it
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call | ast.Subscript):
                names = [n.value for n in ast.iter_child_nodes(node) if isinstance(n, ast.Constant)]
                if "largest_step" in names:
                    readers.add(path.name)
    # Beside the rule: the check of submissions compares the steps with their sum, a note guesses passes from them.
    assert readers == {"budget.py", "acceptance.py", "words.py"}
