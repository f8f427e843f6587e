"""Batch, rate and schedules that follow data and budget: what is given stays, and what follows leaves enough steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmcbench.data.extent import Extent
from xmcbench.engine.training.defaults import PARTS, STEPS, batch_size, epochs_of, learning_rate
from xmcbench.plugins.registry import registry
from xmcbench.trial.budget import Budget
from xmcbench.trial.record import FEW_STEPS, SMALLEST_BATCH

SMALL = Extent(queries=15_000, labels=7_000, query_tokens=45, label_tokens=5)
HUGE = Extent(queries=2_248_619, labels=1_305_265, query_tokens=12, label_tokens=12)
TRAINED = ("dexml", "ngame", "prime", "unidec", "ova")


def following(method: str, data: Extent, budget: dict[str, Any], **settings: Any) -> dict[str, Any]:
    thing = registry().method(method).thing
    config: dict[str, Any] = thing.Config(**thing.following(settings, data, Budget(**budget))).model_dump()
    return config


def steps(config: dict[str, Any], data: Extent, budget: dict[str, Any]) -> float:
    labels = min(data.labels, config["batch_size"])
    return epochs_of(Budget(**budget), data, config["batch_size"], labels) * data.queries / config["batch_size"]


@pytest.mark.parametrize("budget", [{"encoder_tokens": 1_200_000}, {"epochs": 2}, {"epochs": 40}])
@pytest.mark.parametrize("encoder", ["static", "nano"])
@pytest.mark.parametrize("method", TRAINED)
def test_a_batch_leaves_enough_steps_or_is_the_smallest(method: str, encoder: str, budget: dict[str, Any]) -> None:
    thing = registry().method(method).thing
    own = thing.Config().batch_size
    config = following(method, SMALL, budget, encoder={"name": encoder})
    size = config["batch_size"]
    least = thing.least_steps or STEPS["static" if encoder == "static" else "random"]
    assert SMALLEST_BATCH <= size <= own
    assert size == own or size & (size - 1) == 0
    assert size == SMALLEST_BATCH or steps(config, SMALL, budget) >= least * 0.99


def test_word_vectors_have_larger_batches_and_no_fewer_steps_than_a_note_asks_for() -> None:
    assert registry().method("ngame").thing.least_steps == STEPS["static"] == FEW_STEPS
    assert following("dexml", SMALL, {"epochs": 3})["encoder"]["name"] == "static"
    for encoder, batch in (("static", 128), ("nano", 64), ("bert-base-uncased", 64)):
        sizes = {
            method: following(method, SMALL, {"epochs": 3}, encoder={"name": encoder})["batch_size"]
            for method in TRAINED
        }
        assert sizes == {"dexml": batch, "ngame": 128, "prime": batch, "unidec": batch, "ova": 16}


@given(
    st.integers(100, 3_000_000),
    st.floats(0.1, 200),
    st.integers(SMALLEST_BATCH, 4096),
    st.sampled_from([0, 1, 7, 10**6]),
    st.sampled_from(sorted(STEPS.values())),
)
def test_no_larger_power_of_two_would_leave_enough(
    queries: int, epochs: float, most: int, labels: int, least: int
) -> None:
    data, budget = Extent(queries, 10**6, 20, 5), Budget(epochs=epochs)
    size = batch_size(most, least, data, budget, lambda _: labels)
    larger = min(most, 2 * size)
    enough = epochs * queries / larger >= least and larger * PARTS <= queries
    assert size == most or not enough


@pytest.mark.parametrize("method", TRAINED)
def test_at_the_papers_scale_batch_and_schedules_are_the_papers(method: str) -> None:
    plain = registry().method(method).thing.Config().model_dump()
    config = following(method, HUGE, {"epochs": 300})
    follow = {"learning_rate", "head_learning_rate", "classifier_learning_rate", "table"}
    assert {name: config[name] for name in plain.keys() - follow} == {
        name: plain[name] for name in plain.keys() - follow
    }


@pytest.mark.parametrize("epochs", [0.5, 1.4, 3, 10, 30, 99])
@pytest.mark.parametrize(("method", "start"), [("dexml", "refresh_start"), ("ngame", "cluster_start")])
def test_shortlists_and_clusters_come_within_the_budget(method: str, start: str, epochs: float) -> None:
    config = following(method, SMALL, {"epochs": epochs})
    assert config[start] < epochs or (epochs <= 1 and config[start] == 1)  # clusters need the vectors of an epoch
    assert config["refresh_every" if method == "dexml" else "cluster_every"] >= 1


@pytest.mark.parametrize("method", ["dexml", "unidec"])
def test_tokens_for_few_epochs_pay_for_no_shortlist(method: str) -> None:
    epoch = SMALL.queries * (SMALL.query_tokens + 2 * SMALL.label_tokens)
    few, enough = (following(method, SMALL, {"encoder_tokens": epochs * epoch}) for epochs in (1, 6))
    assert few["refresh_start"] >= 2
    assert enough["refresh_start"] <= 1
    assert following(method, SMALL, {"epochs": 1})["refresh_start"] == 0  # which pays for no pass
    assert following(method, SMALL, {"encoder_tokens": epoch}, refresh_start=0)["refresh_start"] == 0


@pytest.mark.parametrize("method", TRAINED)
def test_what_is_given_stays_and_what_has_no_effect_does_not_follow(method: str) -> None:
    settings: dict[str, Any] = {"batch_size": 777, "learning_rate": 0.5}
    settings |= {"dexml": {"refresh_start": 9}, "ngame": {"cluster_size": 3, "batches": "clusters"}}.get(method, {})
    config = following(method, SMALL, {"epochs": 2}, **settings)
    assert settings.items() <= config.items()
    in_batch = following("dexml", SMALL, {"epochs": 2}, negatives="in-batch")
    assert (in_batch["refresh_start"], in_batch["refresh_every"]) == (5, 5)


def test_rates_rise_with_the_root_of_the_batch() -> None:
    assert learning_rate("static", 256) == 2 * learning_rate("static", 64)
    assert learning_rate("static", 64) > learning_rate("nano", 64) > learning_rate("bert-base-uncased", 64)
    assert learning_rate("static", 2**20) == learning_rate("static", 1024)


@pytest.mark.parametrize(
    ("negatives", "temperature"), [("hard", 0.1), ("in-batch", 0.1), ("embedding-cache", 0.05), ("all", 0.05)]
)
def test_where_one_label_dominates_few_negatives_have_a_higher_temperature(negatives: str, temperature: float) -> None:
    few, many = (replace(SMALL, head=head) for head in (0.29, 0.31))
    assert following("dexml", few, {"epochs": 9}, negatives=negatives)["temperature"] == 0.05
    assert following("dexml", many, {"epochs": 9}, negatives=negatives)["temperature"] == temperature
    assert following("dexml", many, {"epochs": 9}, negatives=negatives, temperature=0.07)["temperature"] == 0.07
    assert following("dexml", many, {"epochs": 9})["temperature"] == 0.1


@pytest.mark.parametrize("method", TRAINED)
def test_where_one_label_dominates_averaged_words_are_those_of_names(method: str) -> None:
    described = replace(SMALL, head=0.31, label_tokens=40, label_limit=64)

    def length(data: Extent, **settings: Any) -> Any:
        return following(method, data, {"epochs": 9}, **settings)["max_label_length"]

    assert length(described) == 10
    assert length(described, max_label_length=20) == 20
    assert length(described, encoder={"name": "nano"}) == 64
    assert length(replace(described, head=0.29)) == 64
    assert length(replace(described, label_tokens=9, label_limit=None)) is None


@pytest.mark.parametrize("method", ["ngame", "prime"])
def test_few_epochs_train_on_every_true_label_of_the_pool(method: str) -> None:
    assert following(method, SMALL, {"epochs": 99})["positives"] == "all"
    assert following(method, SMALL, {"epochs": 100})["positives"] == "drawn"
    assert following(method, SMALL, {"epochs": 9}, positives="drawn")["positives"] == "drawn"


def test_where_one_label_dominates_ngame_draws_most_labels_of_a_query() -> None:
    def drawn(data: Extent, **settings: Any) -> Any:
        return following("ngame", data, {"epochs": 9}, **settings)["positives_per_query"]

    few, many = (replace(SMALL, head=head) for head in (0.29, 0.31))
    assert (drawn(few), drawn(many)) == (1, 5)
    assert drawn(replace(many, labels_per_query=13.6)) == 28
    assert drawn(many, positives_per_query=2) == 2


def test_a_second_stages_first_method_follows_its_share() -> None:
    first = {"method": "dexml"}
    whole, half = (
        following("classifier", SMALL, {"epochs": epochs}, first=first, share=0.5)["first"]["batch_size"]
        for epochs in (40, 80)
    )
    assert half == following("dexml", SMALL, {"epochs": 40})["batch_size"] > whole / 2
    assert following("classifier", SMALL, {"epochs": 40}, first=first | {"batch_size": 99})["first"]["batch_size"] == 99


def test_the_parts_of_a_fusion_follow_their_shares_of_the_budget() -> None:
    parts = [{"method": "ova"}, {"method": "popular"}]
    fused = following("fuse", SMALL, {"epochs": 8}, parts=parts, share=0.5)
    alone = following("ova", SMALL, {"epochs": 2})
    assert alone.items() <= fused["parts"][0].items()
