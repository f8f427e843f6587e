from .label_table import LabelTable
from .settings import TableConfig

__all__ = [
    "LabelTable",
    "TableConfig",
]
