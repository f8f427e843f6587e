"""PRIME's loss is its equation, with each of its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine.losses import reference
from torch import Tensor
from torch.nn.functional import normalize

from xmcbench import sampling
from xmcbench_plugins.prime import PRIME

from .prime_modules import DATA, batch_of, made


def expected(method: PRIME, queries_BD: Tensor, labels_SD: Tensor, batch: sampling.Batch) -> Tensor:
    """Eq. 5, whose terms are Eq. 1 over the positives that are trained on, one pair at a time, by B queries."""
    settings = method.config
    truth_BS = DATA.targets[batch.query_ids][:, batch.label_ids].toarray() > 0
    margin: Any = (settings.smallest_margin, settings.largest_margin)
    term = reference.triplet(
        settings.largest_margin if settings.margin == "fixed" else margin,
        settings.hardest,
        settings.weight_temperature,
        "excluded",
        "sum",
        settings.margin == "as-printed",
    )
    h_BD, h_SD = normalize(queries_BD, dim=1), normalize(labels_SD, dim=1)
    z_SD = method.label_vectors(labels_SD, batch.label_ids)
    trained, drawn = (reference.weighting(which, truth_BS, batch.positives) for which in (settings.positives, "drawn"))
    total = torch.zeros((), dtype=torch.float64)
    if settings.query_to_prototype:
        total = total + reference.mean_loss(term, h_BD, z_SD, truth_BS, trained, 1.0)
    if settings.query_to_label:
        total = total + reference.mean_loss(term, h_BD, h_SD, truth_BS, trained, 1.0)
    if settings.label_to_query:
        torch.manual_seed(9)
        ranks_B = torch.randperm(len(queries_BD)).tolist()
        first = {s: min(np.flatnonzero(truth_BS[:, s]), key=ranks_B.__getitem__) for s in range(len(labels_SD))}
        draws = [sum(drawn(int(b), s) for b in np.flatnonzero(truth_BS[:, s])) for s in range(len(labels_SD))]
        turned = {
            "drawn": lambda s, b: trained(b, s),
            "all": lambda s, b: 1.0,  # noqa: ARG005
            "one": lambda s, b: float(first[s] == b),
            "one-by-draws": lambda s, b: draws[s] * (first[s] == b),
        }[settings.positives]
        mean_over_labels = reference.mean_loss(term, h_SD, h_BD, truth_BS.T, turned, 1.0)
        by = len(labels_SD) if settings.over_labels == "mean" else len(queries_BD)
        total = total + mean_over_labels * len(labels_SD) / by
    if settings.regulariser_weight:
        total = total + settings.regulariser_weight * regulariser(method, h_BD, h_SD, z_SD, truth_BS, trained)
    return total


def regulariser(
    method: PRIME, h_BD: Tensor, h_SD: Tensor, z_SD: Tensor, truth_BS: np.ndarray, trained: reference.Weight
) -> Tensor:
    settings = method.config
    s_BS, b_BS = h_BD @ h_SD.T, h_BD @ z_SD.T
    parts: dict[int, list[Tensor]] = {1: [], -1: []}
    for row in range(len(h_BD)):
        false = sorted(np.flatnonzero(~truth_BS[row]), key=lambda column: -b_BS[row, column].item())
        true = [column for column in np.flatnonzero(truth_BS[row]) if trained(row, int(column))]
        for sign, columns in ((1, true), (-1, false[: settings.hardest])):
            for column in columns:
                hinge = sign * (s_BS[row, column] - b_BS[row, column]) + settings.regulariser_margin
                parts[sign].append(hinge if hinge > 0 else hinge * 0)
    counts = [sum(bool(settings.regulariser_mean == "all" or h > 0) for h in hinges) or 1 for hinges in parts.values()]
    return sum(torch.stack(h).sum() / n for h, n in zip(parts.values(), counts, strict=True)) / 2


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positives": "one"},
        {"positives": "one-by-draws"},
        {"positives": "all"},
        {"query_to_prototype": False},
        {"query_to_label": False},
        {"label_to_query": False},
        {"over_labels": "mean"},
        {"query_to_label": False, "label_to_query": False, "regulariser_weight": 0.0},
        {"regulariser_weight": 0.0},
        {"regulariser_weight": 2.0, "regulariser_mean": "violators"},
        {"regulariser_weight": 2.0, "regulariser_margin": 0.05, "hardest": 3},
        {"margin": "fixed"},
        {"margin": "as-printed"},
        {"margin": "dynamic", "smallest_margin": 0.3, "largest_margin": 0.9},
        {"hardest": 3, "weight_temperature": None},
        {"centroids": "none"},
        {"free_vectors": 0},
    ],
    ids=str,
)
def test_value_and_gradients_equal_the_equation(settings: dict[str, Any]) -> None:
    method = made(**settings)
    batch, queries, labels = batch_of(method)
    inputs = [queries, labels, *method.modules["prototypes"].parameters()]
    torch.manual_seed(9)
    outcomes = [
        (value, torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True))
        for value in (method.loss(queries, labels, batch), expected(method, queries, labels, batch))
    ]
    (value, gradients), (wanted, others) = outcomes
    assert value.item() == pytest.approx(wanted.item(), rel=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-8)
    plain = made()
    torch.manual_seed(9)
    assert settings == {} or value.item() != pytest.approx(plain.loss(queries, labels, batch).item(), rel=1e-4)


def test_with_one_positive_the_term_from_labels_is_the_public_codes_mean_over_columns() -> None:
    """There a batch has a column for each label drawn, repeated ones included, and the term is their mean."""
    alone: dict[str, Any] = {"query_to_prototype": False, "query_to_label": False, "regulariser_weight": 0.0}
    method = made(positives_per_query=1, positives="one-by-draws", **alone)
    batch, queries, labels = batch_of(method)
    drawn = batch.positives.chosen["drawn"] > 0
    columns = batch.positives.columns_P[drawn]  # as many as queries
    assert len(columns.unique()) < len(columns) == len(queries)
    truth = (DATA.targets[batch.query_ids][:, batch.label_ids].toarray() > 0)[:, columns.numpy()]
    torch.manual_seed(9)
    ranks_B = torch.randperm(len(queries)).tolist()
    first = [min(np.flatnonzero(truth[:, c]), key=ranks_B.__getitem__) for c in range(len(columns))]
    term = reference.triplet((0.1, 0.3), 100, 0.1, "excluded", "sum")
    h_BD, h_CD = normalize(queries, dim=1), normalize(labels, dim=1)[columns]
    wanted = reference.mean_loss(term, h_CD, h_BD, truth.T, lambda c, b: float(first[c] == b), 1.0)
    torch.manual_seed(9)
    assert method.loss(queries, labels, batch).item() == pytest.approx(wanted.item(), rel=1e-6)
    torch.manual_seed(9)
    over_labels = made(positives_per_query=1, positives="one-by-draws", over_labels="mean", **alone)
    assert over_labels.loss(queries, labels, batch).item() != pytest.approx(wanted.item(), rel=1e-3)


def test_the_key_of_a_trial_that_sums_over_labels_is_that_of_one_from_before_the_setting() -> None:
    assert "over_labels" not in PRIME.Config(encoder="tiny").model_dump()
    assert PRIME.Config(encoder="tiny", over_labels="mean").model_dump()["over_labels"] == "mean"


def test_a_regulariser_that_nothing_violates_is_zero_and_no_number_divides_by_zero() -> None:
    method = made(regulariser_mean="violators", regulariser_margin=0.0, regulariser_weight=1.0)
    batch, queries, labels = batch_of(method)
    same = normalize(labels, dim=1)  # prototypes that are the texts: every hinge is 0
    value = method._regulariser(normalize(queries, dim=1), same, same, batch.positives)
    value.backward()
    assert value.item() == 0
    assert labels.grad is not None
    assert not labels.grad.any()
