"""Second stages: what is learnt on top of a dual encoder that has been trained and is not touched any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl
from xmcbench_second_stage.classifier import Classifier
from xmcbench_second_stage.sparse_ranker import SparseRanker


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    register(Classifier)
    register(SparseRanker)
