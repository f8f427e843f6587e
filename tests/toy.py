"""A dataset, an encoder and a run that are small enough to train in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

from xmcbench.data.dataset import DatasetCard, TrainingData
from xmcbench.engine.embedding_method import EmbeddingMethod, Training
from xmcbench.engine.encoders.tokenizer import train_tokenizer
from xmcbench.trial.budget import Budget
from xmcbench.trial.run import Run

QUERIES, LABELS = 60, 40
UNLABELLED = (7, 23, 59)


def make_words(count: int, rng: np.random.Generator) -> list[str]:
    syllables = [onset + vowel for onset in "bdfgklmnprst" for vowel in "aeiou"]
    return ["".join(rng.choice(syllables, size=rng.integers(1, 4))) for _ in range(count)]


def toy_data(*, ignored: int = 0, seed: int = 0) -> TrainingData:
    """60 queries of 1 to 9 words, 40 labels of 1 to 3; a query has 1 to 4 labels, the queries `UNLABELLED` none.

    Each labelled query has `ignored` ignored pairs, none of them true.
    """
    rng = np.random.default_rng(seed)
    words = make_words(80, rng)
    texts = [" ".join(rng.choice(words, size=rng.integers(1, 10))) for _ in range(QUERIES)]
    label_texts = [" ".join(rng.choice(words, size=rng.integers(1, 4))) for _ in range(LABELS)]
    targets, ignore = np.zeros((2, QUERIES, LABELS), np.float32)
    for query in sorted(set(range(QUERIES)) - set(UNLABELLED)):
        drawn = rng.permutation(LABELS)
        positives = int(rng.integers(1, 5))
        targets[query, drawn[:positives]] = 1
        ignore[query, drawn[positives : positives + ignored]] = 1
    card = DatasetCard(name="toy", num_train=QUERIES, num_test=1, num_labels=LABELS, max_length=16, max_label_length=8)
    return TrainingData(card, texts, sp.csr_array(targets), label_texts, sp.csr_array(ignore))


def save_small_encoder(directory: Path, data: TrainingData) -> str:
    """Write a BERT of two layers of 32 units that knows the words of `data`; return its path, an encoder's name."""
    return save_bert(directory, train_tokenizer([*data.texts, *data.label_texts]), 32)


def save_bert(directory: Path, tokenizer: PreTrainedTokenizerBase, width: int) -> str:
    """Write a BERT of two layers with random weights and its tokenizer; return its path."""
    torch.manual_seed(0)
    settings = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=32,
        pad_token_id=0,
    )
    BertModel(settings, add_pooling_layer=False).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def make_run(root: Path, budget: dict[str, Any], seed: int = 0, **settings: Any) -> Run:
    return Run(
        seed=seed,
        budget=Budget.model_validate(budget),
        checkpoint=root / "checkpoint",
        cache=root / "cache",
        **settings,
    )


def two_steps(method: EmbeddingMethod, data: TrainingData, run: Run) -> tuple[int, FlopCounterMode]:
    """The operations that two steps charge beside the encoder's, and torch's counter around them."""
    method.prepare(data, run)
    loop = Training(method, data)
    with torch.no_grad():
        loop._refreshed()
    before = run.ledger.scoring_flops + run.ledger.module_flops
    with FlopCounterMode(display=False) as counter:
        for _ in range(2):
            loop.step(0.5)
    return run.ledger.scoring_flops + run.ledger.module_flops - before, counter
