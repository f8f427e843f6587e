"""Fixtures of the tests that run the engine on toy data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from toy import save_small_encoder, toy_data

from xmcbench.data.dataset import TrainingData


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices are quicker on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data() -> TrainingData:
    return toy_data(ignored=1)


@pytest.fixture(scope="session")
def small_encoder(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of an encoder of two layers, dropout 0.1."""
    return save_small_encoder(tmp_path_factory.mktemp("encoder"), data)
