"""Datasets: what one is, where it comes from, and `load`."""

from __future__ import annotations

from xmcbench.data.dataset import Dataset, DatasetCard, Split, Texts, TrainingData
from xmcbench.data.prepared import content_hash, dataset_name, find_source, load
from xmcbench.data.source import Draft, Family, Source
from xmcbench.data.texts import PackedTexts

__all__ = [
    "Dataset",
    "DatasetCard",
    "Draft",
    "Family",
    "PackedTexts",
    "Source",
    "Split",
    "Texts",
    "TrainingData",
    "content_hash",
    "dataset_name",
    "find_source",
    "load",
]
