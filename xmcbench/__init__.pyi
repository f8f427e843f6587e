from . import data, evaluation, teachers
from .api import leaderboard, run, score
from .data.dataset import Dataset, DatasetCard, Split, Texts, TrainingData
from .data.extent import Extent
from .data.prepared import load
from .engine import encoders, losses, sampling, search
from .engine.device import upload
from .engine.dual_encoder import DualEncoder
from .engine.embedding_method import EmbeddingMethod
from .engine.encoders.dropout import row_dropout
from .engine.encoders.settings import EncoderConfig
from .engine.tables.label_table import LabelTable
from .engine.tables.settings import TableConfig
from .errors import UnknownNameError, XMCBenchError
from .evaluation.imported import read_predictions
from .evaluation.ranking import rank, rank_sparse
from .files.atomic import atomic_write
from .files.manifest import DamagedFolder, check_manifest, checked_folder
from .plugins.extras import import_extra
from .plugins.hookspecs import hookimpl
from .plugins.registry import registry
from .teachers.teacher import Teacher, TeacherConfig
from .tracking.tracker import Tracker
from .trial.budget import Budget, Ledger, PassTooLargeError
from .trial.judging import Judge, Judgements
from .trial.method import IdlePart, Method, MethodInfo
from .trial.predictions import Predictions
from .trial.program import Environment, run_program
from .trial.record import Record
from .trial.run import HeldOut, Progress, Run, TrainingLog, TrialProgress
from .trial.trial import Trial

__all__ = [
    "Budget",
    "DamagedFolder",
    "Dataset",
    "DatasetCard",
    "DualEncoder",
    "EmbeddingMethod",
    "EncoderConfig",
    "Environment",
    "Extent",
    "HeldOut",
    "IdlePart",
    "Judge",
    "Judgements",
    "LabelTable",
    "Ledger",
    "Method",
    "MethodInfo",
    "PassTooLargeError",
    "Predictions",
    "Progress",
    "Record",
    "Run",
    "Split",
    "TableConfig",
    "Teacher",
    "TeacherConfig",
    "Texts",
    "Tracker",
    "TrainingData",
    "TrainingLog",
    "Trial",
    "TrialProgress",
    "UnknownNameError",
    "XMCBenchError",
    "atomic_write",
    "check_manifest",
    "checked_folder",
    "data",
    "encoders",
    "evaluation",
    "hookimpl",
    "import_extra",
    "leaderboard",
    "load",
    "losses",
    "rank",
    "rank_sparse",
    "read_predictions",
    "registry",
    "row_dropout",
    "run",
    "run_program",
    "sampling",
    "score",
    "search",
    "teachers",
    "upload",
]
