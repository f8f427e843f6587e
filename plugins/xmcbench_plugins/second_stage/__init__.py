"""Methods made of other methods: second stages on a trained, frozen dual encoder, and fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xmcbench import hookimpl
from xmcbench_plugins.second_stage.classifier import Classifier
from xmcbench_plugins.second_stage.cross_encoder import CrossEncoderRanker
from xmcbench_plugins.second_stage.fuse import Fuse
from xmcbench_plugins.second_stage.memory import Memory
from xmcbench_plugins.second_stage.sparse_ranker import SparseRanker


@hookimpl
def register_methods(register: Callable[[type[Any]], None]) -> None:
    for method in (Classifier, CrossEncoderRanker, Fuse, Memory, SparseRanker):
        register(method)
