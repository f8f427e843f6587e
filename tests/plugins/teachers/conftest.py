"""A tiny causal language model, as `from_pretrained` opens one; the engine's fixtures from `tests/toy_fixtures.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_fixtures import data, one_thread, small_encoder

from .desk import DOCUMENTS, LABELS
from .server import Server

__all__ = ["data", "one_thread", "small_encoder"]

CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_model(folder: Path, chat: bool, pieces: int = 400, words: tuple[str, ...] = ()) -> Path:
    """A Llama of random weights with a byte-level tokenizer; `words` are single tokens of it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend: Any = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*DOCUMENTS, *LABELS, *words * 50], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT * chat or None,
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():  # the usual initial weights are so small that all answers look alike
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("chat"), chat=True, words=("yes", "no"))


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer knows no chat, and takes several tokens for yes and for no."""
    return save_model(tmp_path_factory.mktemp("plain"), chat=False, pieces=300)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "answered.jsonl")
    yield running
    running.kill()
