"""Losses of public code and of xmcbench on the same tensors: values, and gradients of queries and labels.

Each DIR is a clone that stays where it is: github.com/Extreme-classification/ngame, kunaldahiya/prime with
kunaldahiya/deepxml-base, microsoft/renee (dl_base.py alone will do), nilesh2797/DEXML. Losses that draw a positive get
the one that theirs drew.

    python benchmarks/loss_parity.py --ngame DIR --prime DIR --deepxml DIR --renee DIR --dexml DIR \
        --markdown docs/measurements.md --write benchmarks/loss_values.yaml

The values of the public code are kept in loss_values.yaml, with which a test compares xmcbench.

Legend: B queries, S labels of the pool, D dimensions, P true pairs.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml
from report import options, report
from torch import Tensor

from xmcbench import losses
from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig

B, D, HARDEST = 24, 16, 10
TOLERANCE = 1e-5  # relative: public code has float32 in places
Loss = Callable[["Point"], Tensor]


@dataclass(frozen=True)
class Point:
    """Unit vectors, and the truth of B queries and B labels of which label i was drawn for query i; `one_BS` has one
    true label of each query, the positive of losses that draw one."""

    queries_BD: Tensor
    labels_SD: Tensor
    prototypes_SD: Tensor
    truth_BS: Tensor
    one_BS: Tensor

    @classmethod
    def make(cls) -> Point:
        rng = np.random.default_rng(0)

        def unit() -> Tensor:
            vectors = rng.standard_normal((B, D))
            return torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).requires_grad_()

        truth_BS = torch.from_numpy((rng.random((B, B)) < 0.08) | np.eye(B, dtype=bool)).double()
        torch.manual_seed(0)
        one_BS = torch.zeros_like(truth_BS).scatter_(1, torch.multinomial(truth_BS, 1), 1.0)
        return cls(unit(), unit(), unit(), truth_BS, one_BS)

    @property
    def scores_BS(self) -> Tensor:
        return self.queries_BD @ self.labels_SD.T

    def positives(self) -> losses.Positives:
        rows_P, columns_P = self.truth_BS.nonzero(as_tuple=True)
        chosen = {"drawn": (rows_P == columns_P).float(), "one": self.one_BS[rows_P, columns_P].float()}
        return losses.Positives(rows_P, columns_P, B, B, chosen)


def our_triplet(which: str, margin: float | losses.DynamicMargin, **settings: Any) -> Loss:
    def loss(point: Point) -> Tensor:
        positives = point.positives()
        weights_P = positives.weights(which)
        return losses.triplet(
            point.queries_BD, point.labels_SD, positives, weights_P, margin=margin, hardest=HARDEST, **settings
        )

    return loss


def our_regulariser(point: Point) -> Tensor:
    from xmcbench_prime import PRIME

    config = SimpleNamespace(hardest=HARDEST, regulariser_margin=0.3, regulariser_mean="violators", positives="one")
    part: Tensor = PRIME._regulariser(
        SimpleNamespace(config=config),  # type: ignore[arg-type]
        point.queries_BD,
        point.labels_SD,
        point.prototypes_SD,
        point.positives(),
    )
    return part


def our_cross_entropy(point: Point) -> Tensor:
    """Times B: Renee sums over the batch, and its learning rates are for that."""
    table = LabelTable(np.arange(B), D, TableConfig.model_validate({"optimizer": "sgd"}), seed=0)
    table.weight = table.weight.to(torch.float64)
    table.weight.copy_(point.labels_SD.detach())
    return losses.cross_entropy_of_rows(point.queries_BD, table, point.positives()) * B


def our_softmax(loss: Callable[..., Tensor]) -> Loss:
    def of(point: Point) -> Tensor:
        positives = point.positives()
        return loss(point.queries_BD, point.labels_SD, positives, positives.averaged(), temperature=0.05)

    return of


EXCLUDED = {"weight_temperature": 0.1, "bystanders": "excluded", "over_negatives": "sum"}
OURS: dict[str, Loss] = {
    "ngame: triplet": our_triplet("drawn", 0.3, over_negatives="mean"),
    "ngame: triplet, weighted": our_triplet(
        "drawn", 0.3, weight_temperature=0.1, bystanders="zero logit", over_negatives="mean"
    ),
    "prime: triplet, fixed margin": our_triplet("one", 0.3, **EXCLUDED),
    "prime: triplet, dynamic margin": our_triplet("one", losses.DynamicMargin(0.1, 0.3), **EXCLUDED),
    "prime: regulariser": our_regulariser,
    "renee: cross-entropy": our_cross_entropy,
    "dexml: decoupled softmax": our_softmax(losses.decoupled_softmax),
}


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"public_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def their_losses(args: Any) -> dict[str, Loss]:
    """The same losses by the public code."""
    ngame = imported(args.ngame / "ngame/libs/loss.py").TripletMarginLossOHNM
    sys.path += [str(args.deepxml), str(args.dexml)]
    prime = imported(args.prime / "prime/libs/loss.py")

    def drawn(loss: Callable[..., Tensor], *scores_BS: Callable[[Point], Tensor]) -> Loss:
        """Seeded as `Point.make` is, so that it draws the same positives."""

        def of(point: Point) -> Tensor:
            torch.manual_seed(0)
            return loss(scores_BS[0](point), point.truth_BS, *(each(point) for each in scores_BS[1:]))

        return of

    def scores(point: Point) -> Tensor:
        return point.scores_BS

    def of_prototypes(point: Point) -> Tensor:
        return point.queries_BD @ point.prototypes_SD.T

    def triplet(smallest: float) -> Loss:
        return drawn(prime.TripletMarginLossOHNM(margin=0.3, margin_min=smallest, num_negatives=HARDEST), scores)

    def plain(weighted: bool) -> Loss:
        loss = ngame(reduction="mean", margin=0.3, k=HARDEST, apply_softmax=weighted)
        return lambda point: loss(point.scores_BS, point.truth_BS)  # type: ignore[no-any-return]

    return {
        "ngame: triplet": plain(weighted=False),
        "ngame: triplet, weighted": plain(weighted=True),
        "prime: triplet, fixed margin": triplet(0.0),
        "prime: triplet, dynamic margin": triplet(0.1),
        "prime: regulariser": drawn(prime.RegLoss(margin=0.3, num_negatives=HARDEST), of_prototypes, scores),
        "renee: cross-entropy": renee(args.renee),
        "dexml: decoupled softmax": dexml(args.dexml),
    }


def renee(clone: Path) -> Loss:
    """Its step computes the gradient of the embeddings by hand; autograd is given it."""
    for unused in ("apex", "xclib", "xclib.evaluation", "xclib.evaluation.xc_metrics", "pandas"):
        sys.modules.setdefault(unused, ModuleType(unused))
    code = imported(clone / "dl_base.py")

    def loss(point: Point) -> Tensor:
        scaler = SimpleNamespace(scale=lambda value: value, get_scale=lambda: 1.0)
        weight = SimpleNamespace(grad=None, tensor=point.labels_SD.detach())
        model = SimpleNamespace(compute_loss=True, fp16xfc=False, scaler=scaler, xfc_weight=weight, world_size=1)
        model.dummy, model._target_device = torch.zeros(1, dtype=torch.float64), "cpu"
        step = code.BCELoss(model)
        step.xfc_weight = weight.tensor
        embedded_BD, gradient_BD = point.queries_BD.detach(), torch.zeros(B, D, dtype=torch.float64)
        scores_BS = torch.zeros(B, B, dtype=torch.float64)
        step.xfc_forward(embedded_BD, scores_BS)
        step.xfc_backward(embedded_BD, scores_BS, *point.truth_BS.nonzero(as_tuple=True), gradient_BD, False)
        # A value with this gradient: the step's own loss, and a term that is 0.
        return step.loss.double() + ((point.queries_BD - embedded_BD) * gradient_BD).sum()

    return loss


def dexml(clone: Path) -> Loss:
    code = imported(clone / "losses.py")
    code.GatherLayer = SimpleNamespace(apply=lambda value: value[None])  # one worker
    settings = {"loss_sample": False, "loss_reduction": "mean", "loss_weighted": False, "numy": B}

    def loss(point: Point) -> Tensor:
        criterion = code.SimLoss(SimpleNamespace(loss_criterion="decoupled-softmax", **settings))
        columns_BS = torch.arange(B).expand(B, B)
        value: Tensor = criterion.compute_loss(
            point.scores_BS / 0.05, (columns_BS, point.truth_BS), lambda *pairs: pairs
        )
        return value

    return loss


def measured(loss: Loss) -> dict[str, Any]:
    """The loss, and the gradient of the queries as B sums over its dimensions, weighted 1 to D."""
    point = Point.make()
    value = loss(point)
    (gradient_BD,) = torch.autograd.grad(value, point.queries_BD)
    sums_B = gradient_BD @ torch.arange(1.0, D + 1, dtype=torch.float64)
    return {"loss": float(value.detach()), "gradient": [float(each) for each in sums_B]}


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float]:
    """The relative differences of the losses, and of the gradients in the largest entry of theirs."""
    largest = max(abs(each) for each in theirs["gradient"])
    gradient = max(abs(a - b) for a, b in zip(ours["gradient"], theirs["gradient"], strict=True)) / largest
    return abs(ours["loss"] / theirs["loss"] - 1), gradient


def main() -> None:
    parser = options(__doc__)
    for name in ("ngame", "prime", "deepxml", "renee", "dexml"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="a clone of the public code")
    parser.add_argument("--write", type=Path, help="file for the values of the public code")
    args = parser.parse_args()
    theirs = {name: measured(loss) for name, loss in their_losses(args).items()}
    rows = []
    for name, loss in OURS.items():
        ours = measured(loss)
        of_loss, of_gradient = difference(ours, theirs[name])
        rows.append(
            {
                "loss": name,
                "ours": f"{ours['loss']:.6f}",
                "public code": f"{theirs[name]['loss']:.6f}",
                "difference": f"{of_loss:.0e}",
                "of the gradient": f"{of_gradient:.0e}",
                "equal": "yes" if math.isfinite(of_gradient) and max(of_loss, of_gradient) <= TOLERANCE else "no",
            }
        )
    report("loss_parity", rows, args)
    if args.write:
        text = yaml.safe_dump(theirs, sort_keys=False, default_flow_style=None, width=120)
        args.write.write_text(f"# Written by loss_parity.py.\n{text}")


if __name__ == "__main__":
    main()
