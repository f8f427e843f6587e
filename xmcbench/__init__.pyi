from . import data, evaluation, files, teachers, tracking
from .api import compare, leaderboard, predict, run, score, show
from .data.prepared import load
from .engine import encoders, losses, sampling, search, tables
from .engine.device import upload
from .engine.dual_encoder import DualEncoder
from .engine.embedding_method import EmbeddingMethod
from .errors import XMCBenchError, import_extra
from .plugins.commands import Command
from .plugins.hookspecs import hookimpl
from .plugins.registry import register, registry
from .reporting.formats import Format
from .reporting.names import NamedMethod
from .reporting.paper_rows import PublishedRow
from .reporting.published import Results
from .runs.executor import Executor
from .trial import programs
from .trial.budget import Budget, Ledger, PassTooLargeError
from .trial.embedder import Embedder, ServiceBudgetSpentError
from .trial.facts import Choice, ChosenBy, Ended
from .trial.method import Method, MethodInfo
from .trial.predictions import Predictions
from .trial.run import Progress, Run, secret

__all__ = [
    "Budget",
    "Choice",
    "ChosenBy",
    "Command",
    "DualEncoder",
    "Embedder",
    "EmbeddingMethod",
    "Ended",
    "Executor",
    "Format",
    "Ledger",
    "Method",
    "MethodInfo",
    "NamedMethod",
    "PassTooLargeError",
    "Predictions",
    "Progress",
    "PublishedRow",
    "Results",
    "Run",
    "ServiceBudgetSpentError",
    "XMCBenchError",
    "compare",
    "data",
    "encoders",
    "evaluation",
    "files",
    "hookimpl",
    "import_extra",
    "leaderboard",
    "load",
    "losses",
    "predict",
    "programs",
    "register",
    "registry",
    "run",
    "sampling",
    "score",
    "search",
    "secret",
    "show",
    "tables",
    "teachers",
    "tracking",
    "upload",
]
