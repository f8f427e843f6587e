"""Every matrix product is counted once: as torch's own counter counts it, or by its shapes where that sees nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from xmcbench.engine.flops import Count, by_formula, charged_to_open_stages, counting
from xmcbench.engine.matrix_products import KEY
from xmcbench.trial.budget import Ledger

M, K, N = 4, 8, 5
LEFT, RIGHT = torch.randn(M, K), torch.randn(K, N)
WORDS = torch.randn(3, 5, K)  # [T, B, K]
PRODUCT = 2 * M * K * N

IN_PLACE: dict[str, tuple[Callable[[], object], int]] = {  # and others that torch's counter does not see
    "addmm_": (lambda: torch.zeros(M, N).addmm_(LEFT, RIGHT), PRODUCT),
    "baddbmm_": (lambda: torch.zeros(1, M, N).baddbmm_(LEFT[None], RIGHT[None]), PRODUCT),
    "addmv_": (lambda: torch.zeros(M).addmv_(LEFT, RIGHT[:, 0]), 2 * M * K),
    "vector": (lambda: LEFT @ RIGHT[:, 0], 2 * M * K),
    "dot": (lambda: torch.dot(LEFT[0], RIGHT[:, 0]), 2 * K),
    "out": (lambda: torch.mm(LEFT, RIGHT, out=torch.empty(M, N)), PRODUCT),
    "sparse": (lambda: torch.sparse.mm(torch.eye(K).to_sparse(), RIGHT), 2 * K * N),
    "einsum": (lambda: torch.einsum("mk,kn->n", LEFT, RIGHT), 2 * K * N),  # sums the rows first
    "distances": (lambda: torch.cdist(LEFT, RIGHT.T.contiguous(), p=1), PRODUCT),
}


def counted(work: Callable[[], object], *contexts: AbstractContextManager[object]) -> tuple[int, int]:
    """The operations of `work` by the harness and by torch's counter."""
    with ExitStack() as stack:
        torch_counts = stack.enter_context(FlopCounterMode(display=False))
        own = stack.enter_context(counting())
        for context in contexts:
            stack.enter_context(context)
        work()
    return own.module_flops, torch_counts.get_total_flops()


SPARSE = torch.eye(K).to_sparse()  # with K numbers
SQUARE = RIGHT @ RIGHT.T + torch.eye(K)  # symmetric, with positive eigenvalues
IN_PLACE |= {  # sparse, complex and quantised matrices, and distances
    "sparse by sparse": (lambda: torch.sparse.mm(SPARSE, SPARSE), 2 * K),
    "rows by rows": (lambda: SPARSE.to_sparse_csr() @ SPARSE.to_sparse_csr(), 2 * K),
    "dense by sparse": (lambda: LEFT @ SPARSE.to_sparse_csr(), 2 * M * K),
    "sparse rows": (lambda: torch.smm(SPARSE, RIGHT), 2 * K * N),
    "sparse result": (lambda: torch.hspmm(SPARSE, RIGHT), 2 * K * N),
    "blocks": (lambda: LEFT.to_sparse_bsr((2, 2)) @ RIGHT, PRODUCT),
    "chosen entries": (lambda: torch.sparse.sampled_addmm(torch.eye(M).to_sparse_csr(), LEFT, LEFT.T), 2 * M * K),
    "complex": (lambda: LEFT.to(torch.complex64) @ RIGHT.to(torch.complex64), 4 * PRODUCT),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(K, N)))(LEFT), PRODUCT),
    "with activation": (lambda: torch._addmm_activation(torch.zeros(N), LEFT, RIGHT), PRODUCT),
    "pairs of rows": (lambda: nn.functional.pdist(LEFT), M * (M - 1) * K),
    "distances trained": (lambda: torch.cdist(with_gradient(), with_gradient()).sum().backward(), 3 * 2 * K * K * N),
}
CUBE = K**3
IN_PLACE |= {  # decompositions and systems of equations
    "cholesky": (lambda: torch.linalg.cholesky(SQUARE), round(CUBE / 3)),
    "determinant": (lambda: torch.linalg.det(SQUARE), round(CUBE * 2 / 3)),
    "inverse": (lambda: torch.linalg.inv(SQUARE), 2 * CUBE),
    "system": (lambda: torch.linalg.solve(SQUARE, RIGHT), round(CUBE * 2 / 3) + 2 * K * K * N),
    "system of one": (lambda: torch.linalg.solve(SQUARE, RIGHT[:, 0]), round(CUBE * 2 / 3) + 2 * K * K),
    "triangle": (lambda: torch.linalg.solve_triangular(SQUARE, RIGHT, upper=True), K * K * N),
    "by triangles": (lambda: torch.cholesky_solve(RIGHT, SQUARE), 2 * K * K * N),
    "orthogonal": (lambda: torch.linalg.qr(SQUARE), 4 * round(CUBE * 2 / 3)),
    "without Q": (lambda: torch.linalg.qr(SQUARE, mode="r"), 2 * round(CUBE * 2 / 3)),
    "least squares": (lambda: torch.linalg.lstsq(SQUARE, RIGHT), 2 * round(CUBE * 2 / 3) + 4 * K * K * N),
    "singular vectors": (lambda: torch.linalg.svd(SQUARE), 26 * CUBE),
    "eigenvectors": (lambda: torch.linalg.eigh(SQUARE), 9 * CUBE),
    "any eigenvectors": (lambda: torch.linalg.eig(SQUARE), 25 * CUBE),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_product_has_two_operations_for_each_pair_of_numbers_that_are_multiplied(name: str) -> None:
    work, expected = IN_PLACE[name]
    assert counted(work)[0] == expected


@pytest.mark.parametrize(("kind", "pairs"), [(nn.Conv1d, 30), (nn.ConvTranspose1d, 32)])
def test_a_convolution_of_groups_trained_is_three_times_its_forward_pass(kind: type[nn.Module], pairs: int) -> None:
    """Each of 16 channels is a group, with three weights; torch's own counter takes them for one group."""
    layer = kind(16, 16, 3, groups=16)
    with counting() as own:
        layer(torch.randn(1, 16, 32, requires_grad=True)).sum().backward()
    assert own.module_flops == 3 * 2 * 16 * 3 * pairs


def test_values_without_vectors_cost_less() -> None:
    """Torch computes the vectors too where its own counter watches."""
    for work, expected in ((torch.linalg.svdvals, 4 * CUBE), (torch.linalg.eigvals, 10 * CUBE)):
        with counting() as own:
            work(SQUARE)
        assert own.module_flops == expected


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(K, K),
    "bilinear": lambda: nn.Bilinear(K, K, K),
    "convolution": lambda: nn.Conv1d(5, 5, 3),
    "lstm": lambda: nn.LSTM(K, K, 2),
    "gru": lambda: nn.GRU(K, K),
    "attention": lambda: nn.MultiheadAttention(K, 2),
    "transformer": lambda: nn.TransformerEncoderLayer(K, 2, 16, dropout=0.0, batch_first=True),
    "mixed": lambda: nn.Sequential(nn.Linear(K, K), nn.Tanh(), nn.LayerNorm(K), nn.Linear(K, K, bias=False)),
}
INPUTS = {"bilinear": 2, "attention": 3}
UNKNOWN_TO_TORCH = {"bilinear", "lstm", "transformer"}  # the last for its fused attention on a CPU


def run(layer: nn.Module, count: int) -> Tensor:
    result = layer(*[WORDS] * count)
    result = result[0] if isinstance(result, tuple) else result
    if result.requires_grad:
        result.sum().backward()
    return result.detach()


def with_gradient() -> Tensor:
    return RIGHT.clone().requires_grad_()


TRANSFORMED: dict[str, Callable[[], object]] = {  # by what torch makes of a product
    "vmap": lambda: torch.vmap(torch.mm)(LEFT.expand(3, M, K), RIGHT.expand(3, K, N)),
    "vmap of one": lambda: torch.vmap(lambda left: left @ RIGHT)(LEFT.expand(3, M, K)),
    "grad": lambda: torch.func.grad(lambda right: (LEFT @ right).sum())(RIGHT),
    "vmap of grad": lambda: torch.vmap(lambda left: torch.func.grad(lambda right: (left @ right).sum())(RIGHT))(
        LEFT.expand(3, M, K)
    ),
    "jacobian": lambda: torch.func.jacrev(lambda right: LEFT @ right)(RIGHT),
    "computed again": lambda: checkpoint(torch.mm, LEFT, with_gradient(), use_reentrant=False).sum().backward(),
    "second gradient": lambda: (
        torch.autograd.grad((LEFT @ (right := with_gradient())).pow(3).sum(), right, create_graph=True)[0]
        .sum()
        .backward()
    ),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16)(torch.mm)(LEFT, RIGHT),
    "compiled": lambda: (
        torch.compile(lambda right: (LEFT @ right).relu(), backend="aot_eager")(with_gradient()).sum().backward()
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_product_that_torch_transforms_counts_as_torch_counts_it(name: str) -> None:
    """Each counter alone, as with torch's beside it some transformations take another way."""
    with counting() as own:
        TRANSFORMED[name]()
    with FlopCounterMode(display=False) as by_torch:
        TRANSFORMED[name]()
    assert own.module_flops == by_torch.get_total_flops() > 0


def test_products_within_operators_of_higher_order_count() -> None:
    with counting() as own:
        torch.cond(torch.tensor(True), lambda left: left @ RIGHT, lambda left: left @ (RIGHT + 1), (LEFT,))
    assert own.module_flops == PRODUCT


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_counts_alike_whatever_kernel_computes_it(name: str) -> None:
    """Trained, it is fused nowhere; without a gradient, or in inference, one kernel may take the place of many."""
    layer, count = LAYERS[name](), INPUTS.get(name, 1)
    trained, by_torch = counted(lambda: run(layer, count))
    forward, _ = counted(lambda: run(layer, count), torch.no_grad())
    assert trained == by_torch or name in UNKNOWN_TO_TORCH
    assert 2 * forward <= trained <= 3 * forward  # what is read, here, gets no gradient
    layer.eval()
    for context in (torch.no_grad, torch.inference_mode):
        assert counted(lambda: run(layer, count), context())[0] == forward


@pytest.mark.parametrize("name", LAYERS)
def test_counting_changes_no_bit(name: str) -> None:
    layer, count = LAYERS[name](), INPUTS.get(name, 1)
    before, gradients = run(layer, count), [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    with counting():
        after = run(layer, count)
    assert torch.equal(before, after)
    assert all(torch.equal(old, new.grad) for old, new in zip(gradients, layer.parameters(), strict=True))


def test_an_inner_block_has_its_operations_for_itself() -> None:
    with counting() as outer:
        LEFT @ RIGHT
        with counting() as inner:
            LEFT @ RIGHT
            LEFT @ RIGHT
        LEFT @ RIGHT
    assert (outer.module_flops, inner.module_flops) == (2 * PRODUCT, 2 * PRODUCT)


@pytest.mark.parametrize("between", [ExitStack, lambda: FlopCounterMode(display=False)])
def test_what_is_counted_by_formula_is_not_counted_again(between: Callable[[], AbstractContextManager[object]]) -> None:
    """Also where another mode lies over the watch, and that mode sees everything."""
    with counting() as own, between() as other:
        with by_formula():
            LEFT @ RIGHT
        LEFT @ RIGHT
    assert own.module_flops == PRODUCT
    if isinstance(other, FlopCounterMode):
        assert other.get_total_flops() == 2 * PRODUCT


def test_a_backward_pass_within_the_block_counts_and_one_after_it_does_not() -> None:
    left, right = LEFT.clone().requires_grad_(), RIGHT.clone().requires_grad_()
    with counting() as own:
        (left @ right).sum().backward()
        later = (left @ right).sum()
    later.backward()
    assert own.module_flops == 3 * PRODUCT + PRODUCT


def test_nothing_is_watched_outside_of_blocks() -> None:
    with counting() as own:
        pass
    LEFT @ RIGHT
    assert own == Count()
    assert not torch._C._dispatch_tls_local_include_set().has(KEY)


@pytest.mark.parametrize(("late", "unknown"), [(True, ["flops"]), (False, [])])
def test_operations_are_unknown_where_torch_is_first_imported_while_they_are_counted(
    late: bool, unknown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    if late:
        monkeypatch.delitem(sys.modules, "torch")
    with charged_to_open_stages(ledger):
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert ledger.not_counted == unknown
