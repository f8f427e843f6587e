"""xmcbench: extreme multi-label methods under equal budgets. What is exported here is all that a plugin may use.

Names are imported when they are first used: `import xmcbench` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmcbench import data, evaluation, losses, models, sampling, search, teachers
    from xmcbench.budget import Budget, Ledger
    from xmcbench.data.dataset import Dataset, DatasetCard, Split, Texts, TrainingData
    from xmcbench.dual_encoder import DualEncoder
    from xmcbench.embedding_method import EmbeddingMethod
    from xmcbench.errors import UnknownNameError, XMCBenchError
    from xmcbench.evaluation.ranking import rank
    from xmcbench.files import atomic_write
    from xmcbench.hookspecs import hookimpl
    from xmcbench.method import Method, MethodInfo, Progress, Run
    from xmcbench.models.encoder import EncoderConfig
    from xmcbench.models.label_table import LabelTable, TableConfig
    from xmcbench.plugins import registry
    from xmcbench.predictions import Predictions
    from xmcbench.teachers.judge import Judge, Judgements
    from xmcbench.teachers.teacher import Teacher, TeacherConfig
    from xmcbench.tracking.tracker import Tracker

_HOME = {
    "Budget": "xmcbench.budget",
    "Dataset": "xmcbench.data.dataset",
    "DatasetCard": "xmcbench.data.dataset",
    "DualEncoder": "xmcbench.dual_encoder",
    "EmbeddingMethod": "xmcbench.embedding_method",
    "EncoderConfig": "xmcbench.models.encoder",
    "LabelTable": "xmcbench.models.label_table",
    "Judge": "xmcbench.teachers.judge",
    "Judgements": "xmcbench.teachers.judge",
    "Ledger": "xmcbench.budget",
    "Method": "xmcbench.method",
    "MethodInfo": "xmcbench.method",
    "Predictions": "xmcbench.predictions",
    "Progress": "xmcbench.method",
    "Run": "xmcbench.method",
    "Split": "xmcbench.data.dataset",
    "Texts": "xmcbench.data.dataset",
    "TableConfig": "xmcbench.models.label_table",
    "Teacher": "xmcbench.teachers.teacher",
    "TeacherConfig": "xmcbench.teachers.teacher",
    "Tracker": "xmcbench.tracking.tracker",
    "TrainingData": "xmcbench.data.dataset",
    "UnknownNameError": "xmcbench.errors",
    "XMCBenchError": "xmcbench.errors",
    "atomic_write": "xmcbench.files",
    "hookimpl": "xmcbench.hookspecs",
    "rank": "xmcbench.evaluation.ranking",
    "registry": "xmcbench.plugins",
}
_MODULES = ("data", "evaluation", "losses", "models", "sampling", "search", "teachers")

__all__ = [
    "Budget",
    "Dataset",
    "DatasetCard",
    "DualEncoder",
    "EmbeddingMethod",
    "EncoderConfig",
    "Judge",
    "Judgements",
    "LabelTable",
    "Ledger",
    "Method",
    "MethodInfo",
    "Predictions",
    "Progress",
    "Run",
    "Split",
    "TableConfig",
    "Teacher",
    "TeacherConfig",
    "Texts",
    "Tracker",
    "TrainingData",
    "UnknownNameError",
    "XMCBenchError",
    "atomic_write",
    "data",
    "evaluation",
    "hookimpl",
    "losses",
    "models",
    "rank",
    "registry",
    "sampling",
    "search",
    "teachers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"xmcbench.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'xmcbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
