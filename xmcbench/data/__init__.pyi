from .dataset import Dataset, DatasetCard, Split, Texts, TrainingData
from .extent import Extent
from .importer import Importer, Row
from .prepared import content_hash, dataset_name, find_source, load
from .source import Draft, Family, Source
from .text_files import pairs_csr
from .texts import PackedTexts

__all__ = [
    "Dataset",
    "DatasetCard",
    "Draft",
    "Extent",
    "Family",
    "Importer",
    "PackedTexts",
    "Row",
    "Source",
    "Split",
    "Texts",
    "TrainingData",
    "content_hash",
    "dataset_name",
    "find_source",
    "load",
    "pairs_csr",
]
