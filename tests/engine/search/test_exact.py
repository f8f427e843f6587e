"""Exact search against a sort of every score."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xmcbench.engine.search import exact, top_k
from xmcbench.engine.search.exact import Sizes

from .cases import Case, assert_same, clustered, tied

SIZES = st.builds(Sizes, rows=st.integers(4, 25), columns=st.integers(20, 250), piece=st.integers(1, 500))
MAXIMA = st.integers(1, 9)


@contextmanager
def small(sizes: Sizes, maxima: int) -> Iterator[None]:
    """Chunks of these sizes, whose first threshold is one of few maxima."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(exact.SIZES, "cpu", sizes)
        patch.setattr(exact, "MAX_MAXIMA", maxima)
        yield


@contextmanager
def bf16_products(faster: bool) -> Iterator[None]:
    """A processor that multiplies bf16 faster than float32, or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "bf16_multiplies_faster", lambda: faster)
        yield


@given(case=tied(), sizes=SIZES, maxima=MAXIMA, screened=st.booleans())
def test_top_k_is_a_sort_by_score_then_label(case: Case, sizes: Sizes, maxima: int, screened: bool) -> None:
    with small(sizes, maxima), bf16_products(screened):
        assert_same(top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude), case.solution())


def near(num_queries: int, num_labels: int) -> Case:
    """Labels that bf16 cannot tell apart around each of 20 centres, so that its products nominate any of them."""
    generator = torch.Generator().manual_seed(6)
    centres_CD = torch.randn(20, 48, generator=generator)
    labels_LD = centres_CD[torch.arange(num_labels) % 20] + 1e-4 * torch.randn(num_labels, 48, generator=generator)
    queries_ND = centres_CD[torch.arange(num_queries) % 20] + torch.randn(num_queries, 48, generator=generator)
    return Case(queries_ND, labels_LD, 10, sp.csr_array((num_queries, num_labels)))


CLUSTERED = clustered(num_queries=64)


def scaled(queries: float, labels: float) -> Case:
    return replace(CLUSTERED, queries_ND=CLUSTERED.queries_ND * queries, labels_LD=CLUSTERED.labels_LD * labels)


HARD = {
    "clustered, a tenth twice": CLUSTERED,
    "nothing but twins": replace(CLUSTERED, labels_LD=CLUSTERED.labels_LD[:50].repeat(60, 1)),
    "closer than bf16": near(64, 3_000),
    "far from the origin": replace(CLUSTERED, labels_LD=CLUSTERED.labels_LD + 1e3),
    "one outweighs all": replace(CLUSTERED, labels_LD=CLUSTERED.labels_LD.index_fill(0, torch.tensor([7]), 1e6)),
    "huge": scaled(1e19, 1e18),
    "a mean that overflows": scaled(1e-9, 3e38),
    "squares that underflow": scaled(1e-25, 1.0),
    "products that underflow": scaled(1e-22, 1e-16),
    "no direction": scaled(0.0, 1.0),
    "all excluded but 5": replace(CLUSTERED, exclude=sp.csr_array(np.arange(3_000)[None].repeat(64, 0) >= 5)),
}


@pytest.mark.parametrize("case", HARD.values(), ids=HARD)
def test_bf16_products_first_change_no_answer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact.SIZES, "cpu", Sizes(rows=32, columns=512, piece=10_000))
    found = []
    for faster in (True, False):
        with bf16_products(faster):
            found.append(top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude))
    assert_same(*found)


def test_float32_products_are_for_the_queries_that_bf16_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query for one of many twins needs them, others do not."""
    distinct = torch.nn.functional.normalize(torch.randn(100, 48, generator=torch.Generator().manual_seed(7)), dim=1)
    queries_ND, labels_LD = distinct[:32], torch.cat([distinct, distinct[:1].expand(50, -1)])
    monkeypatch.setitem(exact.SIZES, "cpu", Sizes(rows=32, columns=512, piece=10_000))
    asked: list[int] = []
    rank = exact.rank
    monkeypatch.setattr(
        exact, "rank", lambda queries_BD, *rest: asked.append(len(queries_BD)) or rank(queries_BD, *rest)
    )
    with bf16_products(True):
        exact.ExactIndex(labels_LD).top_k(queries_ND, 3)
    assert asked == [32, 1]


@pytest.mark.parametrize("case", HARD.values(), ids=HARD)
def test_the_bound_on_rounding_is_one(case: Case) -> None:
    """No score is above the bound that its own bf16 product gives."""
    rounding = exact._Rounding(case.labels_LD)
    rounded_LD = (case.labels_LD - rounding.mean_D).bfloat16()
    products_NL = case.queries_ND.bfloat16() @ rounded_LD.T
    scores_NL = case.queries_ND.double() @ case.labels_LD.double().T
    for products_N, scores_N in zip(products_NL.T, scores_NL.T, strict=True):
        assert (scores_N <= rounding.greatest_scores(case.queries_ND, products_N)).all()


def test_vectors_kept_in_bf16_are_scored_in_float32() -> None:
    case = clustered()
    queries_ND, labels_LD = case.queries_ND.bfloat16(), case.labels_LD.bfloat16()
    assert_same(top_k(queries_ND, labels_LD, 9), top_k(queries_ND.float(), labels_LD.float(), 9))


def test_numpys_products_find_what_torchs_find(monkeypatch: pytest.MonkeyPatch) -> None:
    case = clustered()
    monkeypatch.setitem(exact.SIZES, "cpu", Sizes(7, 500, 1000))
    found = []
    for by_numpy in (True, False):
        monkeypatch.setattr(exact, "numpy_multiplies_faster", lambda answer=by_numpy: answer)
        found.append(top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude))
    assert_same(*found)


@pytest.mark.parametrize("sizes", [Sizes(1, 1_000, 1), Sizes(2, 33, 500), Sizes(4, 1, 10_000), Sizes(9, 128, 7_000)])
def test_chunks_change_no_score(sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    case = clustered(num_queries=9, num_labels=200)
    whole = top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude)
    monkeypatch.setitem(exact.SIZES, "cpu", sizes)
    assert_same(top_k(case.queries_ND, case.labels_LD, case.k, exclude=case.exclude), whole)


class Largest(TorchDispatchMode):
    """Notes how many entries the largest tensor has that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            self.entries = max(self.entries, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return made


@pytest.mark.parametrize("faster", [False, True])
def test_the_score_matrix_is_never_there(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact.SIZES, "cpu", Sizes(rows=16, columns=4096, piece=100))
    queries_ND, labels_LD = torch.randn(640, 2), torch.randn(20_480, 2)
    with Largest() as largest, bf16_products(faster):
        top_k(queries_ND, labels_LD, 3)
    assert largest.entries == 16 * 4096 * (2 if faster else 1)


def test_no_queries_give_no_rows() -> None:
    found = top_k(torch.empty(0, 4), torch.randn(5, 4), 3)
    assert found.indices.shape == found.scores.shape == (0, 3)


@pytest.mark.parametrize(
    ("queries", "labels", "k", "message"),
    [
        (torch.ones(2, 4), torch.ones(5, 4), 6, "top 6 of 5 labels"),
        (torch.ones(2, 4), torch.ones(5, 4), 0, "top 0 of 5 labels"),
        (torch.ones(2, 3), torch.ones(5, 4), 1, r"queries \[2, 3\] and labels \[5, 4\], expected"),
        (torch.tensor([[1.0], [torch.nan]]), torch.ones(5, 1), 1, "a query vector contains nan"),
        (torch.ones(2, 1), torch.tensor([[1.0], [-torch.inf]]), 1, "a label vector contains inf"),
        (torch.full((2, 1), 1e20), torch.full((5, 1), -1e20), 1, "overflow"),
    ],
)
def test_what_has_no_answer_is_refused(queries: Tensor, labels: Tensor, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_k(queries, labels, k)


def test_excluded_pairs_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"excluded pairs \[2, 4\]"):
        top_k(torch.ones(2, 3), torch.ones(5, 3), 1, exclude=sp.csr_array((2, 4)))


@given(st.integers(0, 5000))
def test_few_queries_are_scored_against_more_labels_in_no_more_memory(queries: int) -> None:
    for sizes in exact.SIZES.values():
        at_once = min(queries, sizes.rows)
        assert sizes.columns <= sizes.columns_of(at_once)
        assert at_once * sizes.columns_of(at_once) <= sizes.rows * sizes.columns
