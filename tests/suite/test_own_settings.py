"""What single methods and datasets of a suite may have of their own: a budget, options."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.bench import Bench

from xmcbench.errors import XMCBenchError
from xmcbench.suite.suite import load_suite


def limits(bench: Bench, own: Any, **keys: Any) -> dict[str, dict[str, float]]:
    """The limits of each variant of two methods, of which the second has a budget of its own."""
    methods = {"a": {"method": "fake-ok"}, "b": {"method": "fake-ok", "width": 7, "budget": own}}
    suite = load_suite(bench.suite(methods, **keys), bench.root)
    return {variant.label: variant.budget.limits() for variant in suite.variants}


def test_a_method_may_have_a_budget_of_its_own(bench: Bench) -> None:
    assert limits(bench, {"epochs": 3}) == {"a": {"steps": 5}, "b": {"epochs": 3}}


def test_a_sweep_over_a_limit_changes_the_methods_own_budget(bench: Bench) -> None:
    found = limits(bench, {"epochs": 3}, sweep={"budget.steps": [1, 2]})
    assert found["b[budget.steps=2]"] == {"epochs": 3, "steps": 2}


@pytest.mark.parametrize(
    ("own", "keys", "message"),
    [
        ({"epoch": 3}, {}, r"methods.b.budget.epoch: unknown key \(did you mean 'epochs'"),
        (3, {}, r"methods.b.budget: found 3, expected a mapping of limits"),
        ({"epochs": 3}, {"budget": None, "budgets": {"small": {"steps": 3}}}, "expected no budget of its own"),
        ({"epochs": 3}, {"equal": "steps"}, "every budget must stop at steps alone"),
    ],
)
def test_a_budget_that_cannot_be_used_is_named(bench: Bench, own: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(XMCBenchError, match=message):
        limits(bench, own, **keys)


def test_datasets_may_have_options(bench: Bench) -> None:
    datasets = [{"name": "catalog-100", "test": 300}, "catalog-100-missing-0.5"]
    suite = load_suite(bench.suite(["fake-ok"], datasets=datasets), bench.root)
    assert suite.datasets == ["catalog-100-test-300", "catalog-100-missing-0.5"]
    with pytest.raises(XMCBenchError, match=r"suite.yaml:\d+: datasets\[0\]: of dataset catalog-100: unknown option"):
        load_suite(bench.suite(["fake-ok"], datasets=[{"name": "catalog-100", "queries": 3}]), bench.root)
