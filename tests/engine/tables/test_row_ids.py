"""A label table takes its row ids as a numpy array or a tensor."""

from __future__ import annotations

import numpy as np
import torch

from xmcbench.engine.tables.label_table import LabelTable
from xmcbench.engine.tables.settings import TableConfig


def test_ids_may_be_numpy_arrays_and_the_seed_that_of_torch() -> None:
    torch.manual_seed(5)
    made = [LabelTable(ids, 4, TableConfig(), seed) for ids, seed in ((np.arange(3, 6), None), (torch.arange(3, 6), 5))]
    for table in made:
        table.fill(lambda block_ND, generator: block_ND.normal_(generator=generator))
    assert torch.equal(made[0].weight, made[1].weight)
    assert made[0].rows_of(np.array([5, 3])).tolist() == [2, 0]
