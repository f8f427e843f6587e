"""What is said of trials before they run."""

from __future__ import annotations

from typing import Any

from xmcbench.data.extent import Extent
from xmcbench.plugins.registry import registry
from xmcbench.runs.plan import remarks
from xmcbench.trial.budget import Budget
from xmcbench.trial.trial import Trial

TOKENS = tuple(range(101))
DATA = {"made": Extent(10_000, 1000, 20, 5, stated_limit=100, query_percentiles=TOKENS)}


def trial(label: str, method: str, budget: dict[str, Any], **settings: Any) -> Trial:
    config = registry().method(method).thing.Config(**settings).model_dump(mode="json")
    fields = {"distribution": "xmcbench", "version": "", "dataset": "made", "dataset_hash": "", "seed": 0}
    return Trial(label=label, method=method, config=config, budget=Budget(**budget), **fields)


def test_few_steps_are_told_once_for_all_trials_that_have_them() -> None:
    few = [trial(name, "dexml", {"epochs": 4}, negatives="in-batch", batch_size=400) for name in "ab"]
    many = trial("c", "dexml", {"epochs": 4}, negatives="in-batch", batch_size=200)
    assert remarks([*few[:1], many], DATA) == [
        "a on made: about 100 steps, which are few: lower batch_size or raise the budget"
    ]
    least = trial("d", "dexml", {"steps": 40}, negatives="in-batch", batch_size=16)
    assert remarks([least], DATA) == ["d on made: about 40 steps, which are few: raise the budget"]
    told = remarks([few[0], few[1].changed(seed=1)], DATA)
    assert told[0].startswith("a, b on made: about 100 steps")


def test_steps_that_a_plan_counted_are_those_that_are_told() -> None:
    """A budget of tokens lasts longer than words tell where a word is one token."""
    tokens = trial("t", "dexml", {"encoder_tokens": 600_000}, negatives="in-batch", batch_size=200)
    assert "about 120 steps, which are few" in remarks([tokens], DATA)[0]
    assert "about 190 steps, which are few" in remarks([tokens], DATA, {("made", "t"): 190})[0]
    assert remarks([tokens], DATA, {("made", "t"): 210}) == []


def test_a_budget_that_is_spent_before_the_first_step_is_told() -> None:
    small = trial("small", "prime", {"encoder_tokens": 204_999}, batch_size=16)
    told = "small on made: fails: about 205,000 tokens are encoded before the first step, and the budget allows 204,999"
    assert told in remarks([small], DATA)
    for passes, settings in ((5_000, {"centroids": "none"}), (200_000, {"free_vectors": 0})):
        assert any(f"fails: about {passes:,}" in line for line in remarks([prime(passes - 1, **settings)], DATA))
        assert not any("fails" in line for line in remarks([prime(passes, **settings)], DATA))


def prime(tokens: int, **settings: Any) -> Trial:
    return trial("p", "prime", {"encoder_tokens": tokens}, batch_size=16, **settings)


def test_parts_without_room_and_settings_that_cannot_matter_are_named() -> None:
    swept = [trial(f"n={n}", "dexml", {"epochs": 5}, batch_size=16, negatives_per_query=n) for n in (1, 2)]
    ngame = trial("ngame", "ngame", {"epochs": 5}, batch_size=16)
    assert remarks([*swept, ngame], DATA) == [
        "n=1, n=2 on made: training ends before the first shortlists (refresh_start is 5, in a training of 5 epochs)",
        "ngame on made: training ends before the first clusters (cluster_start is 10, in a training of 5 epochs)",
        "n=1, n=2 differ only in settings that have no effect here: "
        "negatives_per_query, refresh_every, refresh_start, shortlist",
    ]
    longer = [trial(f"n={n}", "dexml", {"epochs": 5.1}, batch_size=16, negatives_per_query=n) for n in (1, 2)]
    assert remarks(longer, DATA) == []


def test_much_that_is_cut_is_told() -> None:
    cut = trial("short", "dexml", {"epochs": 4}, negatives="in-batch", batch_size=16, max_query_length=50)
    assert remarks([cut], DATA) == ["short on made: about 50% of the queries are cut at 50 tokens (max_query_length)"]
    assert remarks([cut, trial("popular", "popular", {"epochs": 4})], {"made": None}) == []


def test_more_than_there_is_is_told() -> None:
    first = {"method": "dexml", "negatives": "hard", "shortlist": 1001}
    memory = trial("memory", "memory", {"device_seconds": 9}, first=first, keys=11_001)
    assert remarks([memory], DATA) == [
        "memory on made: keys is 11,001, but there are 11,000 labels and queries: no more are used",
        "memory on made: shortlist is 1,001, but there are 1,000 labels: no more are used",
    ]
    first |= {"shortlist": 1000}
    assert remarks([trial("memory", "memory", {"device_seconds": 9}, first=first, keys=11_000)], DATA) == []
    unused = {"method": "dexml", "negatives": "in-batch", "cached_negatives": 5000}  # of negatives: embedding-cache
    assert remarks([trial("one", **unused, budget={"device_seconds": 9})], DATA) == []
    defaults = {"made": Extent(5, 4, 20, 5)}
    assert remarks([trial("one", "tfidf-nn", {"device_seconds": 9})], defaults) == []


def test_what_is_counted_are_numbers_of_the_settings() -> None:
    methods = [plugin.thing for plugin in registry().all("method")]
    assert sum(bool(method.counted) for method in methods) >= 10
    for method in methods:
        defaults = [method.Config.model_fields[name].get_default() for name in method.counted]
        assert all(isinstance(number, int | None) for number in defaults), method.name


def test_nothing_is_said_where_the_budget_does_not_tell() -> None:
    timed = trial("timed", "dexml", {"device_seconds": 9}, batch_size=5000)
    assert remarks([timed], DATA) == []


def test_a_second_stage_speaks_of_its_first_method() -> None:
    first = {"method": "dexml", "batch_size": 400}
    told = remarks([trial("two", "classifier", {"epochs": 4}, first=first)], DATA)
    assert told == [
        "two on made: about 80 steps, which are few: lower batch_size or raise the budget",
        "two on made: training ends before the first shortlists (refresh_start is 5, in a training of 3.2 epochs)",
    ]


def test_a_fusion_speaks_of_its_first_part_with_an_encoder() -> None:
    parts = [{"method": "popular"}, {"method": "dexml", "negatives": "in-batch", "batch_size": 400}]
    told = remarks([trial("both", "fuse", {"epochs": 4}, parts=parts, share=0.5)], DATA)
    assert told == ["both on made: about 25 steps, which are few: raise the budget"]
