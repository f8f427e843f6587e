"""Accepted variants are folded behind their method's recommended settings; the user's own rows never are."""

from __future__ import annotations

from xmcbench.api import leaderboard
from xmcbench.reporting.archive import archive
from xmcbench.reporting.leaderboard_text import render
from xmcbench.reporting.ranked_groups import leaderboard as ranked
from xmcbench.reporting.rows import Group, View
from xmcbench.trial.record import Status
from xmcbench_plugins.board.results import ACCEPTED

DATASET = "lf-tate-titles-16k"


def groups(**asked: object) -> list[Group]:
    return list(leaderboard(DATASET, source="measured", store="nowhere", **asked).table.groups)  # type: ignore[arg-type]


def names(group: Group) -> list[str]:
    return [row.method for row in group.rows]


def test_a_table_has_each_method_once_where_its_recommended_settings_are() -> None:
    first = groups()[0]
    shown = [(row.named.name, row.facts.get("encoder")) for row in first.rows if row.status == Status.OK]
    assert len(shown) == len(set(shown))
    assert "dexml-hard" in names(first)
    whole = next(group for group in groups(variants=True) if group.budget == first.budget)
    hidden = sum(int(str(row.facts["variants"])) for row in first.rows if "variants" in row.facts)
    assert hidden > 0
    assert len(whole.rows) == len(first.rows) + hidden
    assert not any("variants" in row.facts for row in whole.rows)


def test_accepted_rows_have_the_names_of_papers_and_the_users_their_own() -> None:
    records = archive(ACCEPTED).of({DATASET}).records
    view = View(dataset=DATASET, source="measured", budget="flops")
    own = {key for key, record in records.items() if record.trial.label == "parabel"}
    text = render(ranked(records.values(), view=view, accepted=set(records) - own))
    assert " XR-Linear" in text
    assert "xr-linear" not in text
    assert " parabel" in text
    assert "Parabel" not in text


def test_a_method_is_found_by_its_name_in_papers() -> None:
    assert names(groups(method="Encoder + memory")[0]) == ["rae", "rae-in-batch"]
    assert {name for group in groups(method="RAE-XMC") for name in names(group)} == {"rae-memory"}, "its own training"
    assert names(groups(method="rae")[0]) == ["rae"]


def test_a_variant_is_found_by_its_name() -> None:
    assert any("dexml-hard-softmax" in names(group) for group in groups(method="dexml-hard-softmax"))


def test_the_first_table_compares_most_methods() -> None:
    supervised = [len({row.plugin for row in group.rows}) for group in groups(variants=True, track="supervised")]
    assert supervised == sorted(supervised, reverse=True)


def test_rows_of_trials_that_are_not_accepted_are_all_shown() -> None:
    records = archive(ACCEPTED).of({DATASET}).records
    view = View(dataset=DATASET, source="measured")
    own = {key for key, record in records.items() if record.trial.label == "dexml-hard-softmax"}
    (group, *_) = ranked(records.values(), view=view, accepted=set(records) - own).groups
    assert "dexml-hard-softmax" in names(group)
    assert "dexml-all-softmax" not in names(group)
