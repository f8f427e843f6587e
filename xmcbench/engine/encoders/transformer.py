"""Transformers as text encoders: any transformers model, pooled to one vector per text.

Legend: N texts, M texts of a micro-batch, W tokens of the longest text, H hidden size (the embedding's dimension).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xmcbench.engine.device import default_device
from xmcbench.engine.encoders.dropout import repeated
from xmcbench.engine.encoders.encoder import Encoder, embed_all
from xmcbench.engine.encoders.lora import ADAPTER_SETTINGS, add_adapters, merged, read_adapters
from xmcbench.engine.encoders.own_modules import OLD_MODES, POOLINGS, OwnModules, SentenceModule, saved_prompts
from xmcbench.engine.encoders.settings import RANDOM_ENCODERS, SETTINGS, EncoderConfig
from xmcbench.engine.encoders.static import WordTable
from xmcbench.engine.encoders.tokenizer import TextTokenizer, trained_tokenizer
from xmcbench.errors import XMCBenchError
from xmcbench.files.pretrained import (
    UnfitModelError,
    check_finite,
    check_floats,
    is_large,
    loading,
    not_finite,
    place_of,
    pretrained,
    quiet,
)
from xmcbench.trial.meter import count_compilers, encoded, uncounted

# Transformers in which every token attends to every other one, through `scaled_dot_product_attention` on a GPU.
FULL_ATTENTION = {"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"}
TRIED = 16  # words whose vectors are compared before a trial
SAME = 1e-5  # of the largest number of some vectors: what they differ in at most where rounding alone tells them apart
FEW = 0.8  # of the rows of a table of words: a tokenizer of fewer tokens is of another model


class TransformerEncoder(Encoder):
    """A transformer and its pooling."""

    def __init__(
        self,
        config: EncoderConfig,
        transformer: nn.Module,
        tokenizer: TextTokenizer,
        own: OwnModules | None = None,
    ) -> None:
        """`own` are the modules that follow the transformer in place of the configuration's pooling."""
        super().__init__(config, tokenizer, _prompts(config, own.prompts if own else {}))
        self.transformer, self.own = transformer, own
        model: Any = transformer
        hidden = int(model.config.hidden_size)
        self.dimension = own.dimension(hidden) if own else hidden
        if config.lora is None and type(model.get_input_embeddings()) is nn.Embedding:
            model.set_input_embeddings(WordTable.of(model.get_input_embeddings()))
        if config.checkpointing:
            model.config.use_cache = False  # of keys and values, which only generation reads
            # Later versions of transformers have another name for it.
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False, "context_fn": repeated})
        if config.compile:
            count_compilers()
            # Torch's own draws, so that dropout is the same with a graph and without one.
            transformer.compile(dynamic=True, options={"fallback_random": True})

    @classmethod
    def build(cls, config: EncoderConfig, texts: Sequence[str], seed: int, cache: Path) -> TransformerEncoder:
        """As `build_encoder`; `texts` train the tokenizer of `tiny` and `nano`."""
        if config.name in RANDOM_ENCODERS:
            tokenizer = cls.tokenizer_of(config, texts, cache)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                transformer = cls.transformer_of(cls.architecture(config, len(tokenizer.tokenizer)))
            return cls(config, transformer, tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of weights that are allowed to be missing
            encoder = cls._pretrained(config, config.place, cls.own_modules(config))
        encoder.check_words()
        if config.lora is not None:
            add_adapters(encoder.transformer, config.lora, config.name, seed)
        return encoder

    @staticmethod
    def own_modules(config: EncoderConfig) -> OwnModules | None:
        """What the pretrained model has of its own, if the settings want that. Raises XMCBenchError."""
        return OwnModules.of(Path(place_of(config.place, _named(config)))) if config.pooling == "own" else None

    @staticmethod
    def prompts_of(config: EncoderConfig) -> dict[str, str]:
        """What is put before queries and before labels: the settings' prefixes, else the pretrained model's own."""
        return _prompts(
            config, saved_prompts(Path(place_of(config.place, _named(config)))) if config.pooling == "own" else {}
        )

    @classmethod
    def load(cls, config: EncoderConfig, directory: Path) -> TransformerEncoder:
        """The encoder that `save` wrote."""
        modules = OwnModules.load(directory) if config.pooling == "own" else None
        if config.lora is None or not (directory / ADAPTER_SETTINGS).is_file():
            return cls._pretrained(config, str(directory), modules)
        encoder = cls._pretrained(config, config.place, modules)
        add_adapters(encoder.transformer, config.lora.model_copy(update={"adapters": None}), config.name, seed=0)
        read_adapters(encoder.transformer, directory, config.name)
        return encoder

    @classmethod
    def _pretrained(cls, config: EncoderConfig, place: str, own: OwnModules | None) -> TransformerEncoder:
        transformer, tokenizer = _loaded(config, place)
        for key, weight in transformer.named_parameters():
            if not bool(weight.isfinite().all()):
                raise UnfitModelError(not_finite(_named(config), key))
        return cls(config, transformer, tokenizer, own)

    @classmethod
    def check(cls, config: EncoderConfig) -> None:
        """Raises UnfitModelError unless the folder of the encoder can be loaded whole, and tells words apart.

        Of a large folder weights are read one at a time; its words, and a model of the hub, are checked when a trial
        loads it.
        """
        place = config.place
        if not Path(place).is_dir():
            place_of(place, _named(config)) if not config.on_hub else None
            return
        if not is_large(Path(place)):
            plain = config.model_copy(update={"compile": False, "checkpointing": False})
            cls._pretrained(plain, place, cls.own_modules(plain)).check_words()
            return
        # Without memory for the weights, which transformers does with the help of accelerate alone.
        _loaded(config, place, **({"device_map": {"": "meta"}} if find_spec("accelerate") else {}))
        check_finite(Path(place), _named(config))

    @staticmethod
    def architecture(config: EncoderConfig, vocabulary: int) -> Any:
        """The settings of the transformer that `config` names; `vocabulary` is the size for `tiny` and `nano`.

        Raises XMCBenchError if they cannot be loaded.
        """
        if config.name not in RANDOM_ENCODERS:
            with loading(_named(config), config.place) as offline:
                return _settings(config, place_of(config.place, _named(config)), offline)
        from transformers import BertConfig

        width, layers, heads = RANDOM_ENCODERS[config.name]
        rate = 0.1 if config.hidden_dropout is None else config.hidden_dropout
        return BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=rate,
            attention_probs_dropout_prob=rate,
            pad_token_id=0,
        )

    @staticmethod
    def transformer_of(settings: Any) -> nn.Module:
        """A transformer of these settings with random weights."""
        from transformers import AutoModel

        model: nn.Module = AutoModel.from_config(settings, attn_implementation=attention(), **_no_pooler(settings))
        return model

    @staticmethod
    def tokenizer_of(config: EncoderConfig, texts: Sequence[str], cache: Path) -> TextTokenizer:
        """The tokenizer; `texts` train that of `tiny` and `nano`. Raises XMCBenchError if it cannot be loaded."""
        if config.name in RANDOM_ENCODERS:
            return TextTokenizer(trained_tokenizer(texts, cache))
        with loading(_named(config), config.place) as offline:
            return _tokenizer(config, place_of(config.place, _named(config)), offline)

    def check_length(self, tokens: int) -> None:
        """Raise XMCBenchError where texts of that many tokens have more places than the transformer knows."""
        most = getattr(self.transformer.config, "max_position_embeddings", None)
        for name, part in self.transformer.named_modules():
            if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
                most -= part.padding_idx + 1  # the first places, which RoBERTa gives no word
        if most is not None and tokens > most:
            raise XMCBenchError(
                f"encoder {self.config.name!r} reads at most {most} tokens, found {tokens}: "
                "lower max_query_length or max_label_length"
            )

    def check_words(self) -> None:
        """Raise UnfitModelError unless words have tokens that the model knows, and vectors that differ."""
        what, vocabulary = _named(self.config), self.tokenizer.tokenizer.get_vocab()
        words = sorted({word for token in vocabulary if (word := token.strip(WORD_MARKS)).isalpha()})
        tokenizer = self.tokenizer.after("")  # a prompt would leave no room for the words
        tokens = tokenizer.tokens([*words[:: max(1, len(words) // TRIED)][:TRIED], RARE], TRIED)
        tokens = tokens.take(np.flatnonzero(tokens.lengths))
        if (largest := int(tokens.ids.max(initial=0))) >= self._rows:
            raise UnfitModelError(
                f"{what}: its tokenizer gives texts the number {largest}, its model has a table of {self._rows:,} "
                f"words: {COPY_TOKENIZER}"
            )
        with torch.compiler.set_stance("force_eager"), uncounted():
            vectors_ND = embed_all(self, tokens, precision="float32", micro_batch_tokens=TRIED**2)
        if not bool(vectors_ND.isfinite().all()):
            raise UnfitModelError(f"{what}: the vectors of words are not finite: save its weights again")
        groups: dict[int, dict[tuple[int, ...], int]] = {}  # texts of other lengths differ by their places alone
        for text, (start, length) in enumerate(zip(tokens.starts.tolist(), tokens.lengths.tolist(), strict=True)):
            groups.setdefault(length, {})[tuple(tokens.ids[start : start + length].tolist())] = text
        compared = [vectors_ND[list(group.values())] for group in groups.values() if len(group) > 1]
        if not compared or any(_differ(vectors_MD) for vectors_MD in compared):
            return
        named = self.transformer.named_parameters()
        flat = next((key for key, weight in named if weight.ndim > 1 and bool((weight == weight[0]).all())), "")
        raise UnfitModelError(
            f"{what}: all words have the same vector{f': all rows of {flat!r} are equal' if flat else ''}: expected "
            "weights of a trained model, save them again, or another pooling"
        )

    @property
    def _rows(self) -> int:
        """Rows of the table of words."""
        model: Any = self.transformer
        return int(model.get_input_embeddings().num_embeddings)

    def forward(self, ids_MW: Tensor, mask_MW: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Embeddings [M, H] in float32. Without a mask no token is padding, and attention is faster."""
        encoded(len(ids_MW), ids_MW.numel() if mask_MW is None else mask_MW.sum())
        states_MWH = self.transformer(input_ids=ids_MW, attention_mask=self._attended(mask_MW)).last_hidden_state
        if self.pooling is not None:
            return self.pooled(states_MWH, torch.ones_like(ids_MW) if mask_MW is None else mask_MW, ids_MW)
        if self.own is None and self.config.pooling == "mean":
            if mask_MW is None:
                return self.finished(states_MWH.float().mean(1))
            sums_MH = torch.einsum("mwh,mw->mh", states_MWH, mask_MW.to(states_MWH.dtype)).float()
            return self.finished(sums_MH / mask_MW.sum(1, keepdim=True).clamp(min=1))
        whole_MW = states_MWH.new_ones(states_MWH.shape[:2]) if mask_MW is None else mask_MW
        if self.own is not None:
            return self.finished(self.own(states_MWH, whole_MW))
        if self.config.pooling == "cls":
            return self.finished(states_MWH[:, 0].float())
        # Places are counted in float32: bf16 has no odd numbers above 256.
        pooled_MH = POOLINGS[self.config.pooling](states_MWH.float(), whole_MW.float())
        return self.finished(pooled_MH.float())  # autocast multiplies in bf16

    def _attended(self, mask_MW: Tensor | None) -> Tensor | None:
        """The mask as the transformer takes it.

        Given a row per text, transformers asks the device whether any token is masked, and so waits for a GPU in each
        micro-batch; a row per token it takes as it is.
        """
        settings: Any = self.transformer.config
        fused = settings._attn_implementation == "sdpa" and settings.model_type in FULL_ATTENTION
        if mask_MW is None or not fused:
            return mask_MW
        return mask_MW[:, None, None, :].expand(-1, 1, mask_MW.shape[1], -1)

    def save(self, directory: Path) -> None:
        """Write transformer, or its adapters, and tokenizer in the layout that transformers opens."""
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # one for a single file
        merges = self.config.lora is not None and self.config.lora.save == "merged"
        transformer: Any = merged(self.transformer, self.transformer_of) if merges else self.transformer
        transformer.save_pretrained(directory)
        self.tokenizer.save(directory)
        if self.own is not None:
            self.own.save(directory)

    def sentence_modules(self, max_length: int) -> list[SentenceModule]:
        length = {"max_seq_length": max_length, "do_lower_case": False}
        transformer = SentenceModule("Transformer", files={"sentence_bert_config.json": length})
        if self.own is not None:
            return [transformer, *self.own.modules_at()]
        modes = {key: mode == self.config.pooling for mode, key in OLD_MODES.items()}
        pooling = {"word_embedding_dimension": self.dimension, **modes}
        return [transformer, SentenceModule("Pooling", "1_Pooling", {SETTINGS: pooling})]


def attention() -> str | None:
    """Plain products on a CPU, where they are several times faster for short texts; on a GPU what transformers takes:
    fused attention for every model that has it."""
    return "eager" if default_device().type == "cpu" else None


COPY_TOKENIZER = "copy the tokenizer's files into the folder of the weights that were trained with it"
WORD_MARKS = "#\u2581\u0120"  # of word pieces, sentencepiece and bytes
RARE = "\U00013000"  # a character that no tokenizer has a word for


def _named(config: EncoderConfig) -> str:
    """The encoder in messages."""
    return f"encoder {config.name!r}"


def _differ(vectors_MD: Tensor) -> bool:
    """Whether some of the vectors differ by more than rounding."""
    return float((vectors_MD - vectors_MD[0]).abs().max()) > SAME * float(vectors_MD.abs().max())


def _loaded(config: EncoderConfig, place: str, **options: Any) -> tuple[Any, TextTokenizer]:
    """The transformer and the tokenizer of a folder or the hub, which fit each other. Raises UnfitModelError."""
    from transformers import AutoModel

    what = _named(config)
    with loading(what, place) as offline:
        settings = _settings(config, place_of(place, what), offline)
        transformer = pretrained(
            AutoModel,
            place,
            what,
            remedy="expected a folder whose weights and config.json are of one model; --allow trains it nevertheless, "
            "missing weights from random values",
            allowed=config.incomplete,
            kept_layers=config.layers,
            config=settings,
            dtype=torch.float32,
            attn_implementation=attention(),
            local_files_only=offline,
            **_no_pooler(settings),
            **options,
        )
        check_floats(Path(place), what)
        tokenizer = _tokenizer(config, place_of(place, what), offline)
    rows = transformer.get_input_embeddings().num_embeddings
    if config.ending and (number := tokenizer.tokenizer.convert_tokens_to_ids(config.ending)) >= rows:
        raise UnfitModelError(
            f"{what}: ending: {config.ending!r} has number {number} in its tokenizer, expected a number below {rows}, "
            "the rows of the model's table of words"
        )
    _check_vocabulary(tokenizer.tokenizer, rows, what, config.incomplete)
    return transformer, tokenizer


def _check_vocabulary(tokenizer: Any, rows: int, what: str, allowed: bool) -> None:
    """Raises UnfitModelError unless the tokenizer knows words, and none that the table of `rows` words lacks.

    Many fewer words than rows are of another model, unless that is `allowed`.

    Tokens that were added to a vocabulary, as for images, may lie beyond the table: no text has them by chance.
    """
    copy = COPY_TOKENIZER
    vocabulary = tokenizer.get_vocab()
    words = {token: number for token, number in vocabulary.items() if token not in tokenizer.get_added_vocab()}
    used = {token: vocabulary[token] for token in tokenizer.all_special_tokens if token in vocabulary}
    if not words.keys() - used.keys():
        raise UnfitModelError(f"{what}: its tokenizer knows special tokens alone, so that all texts are alike: {copy}")
    pad = {str(tokenizer.pad_token): int(tokenizer.pad_token_id)}
    beyond = {token: number for token, number in {**words, **pad}.items() if number >= rows}
    if beyond:
        first = min(beyond, key=lambda token: beyond[token])
        raise UnfitModelError(
            f"{what}: its tokenizer has {len(vocabulary):,} tokens, its model a table of {rows:,} words: {first!r} has "
            f"number {beyond[first]}: {copy}"
        )
    if (known := 1 + max(vocabulary.values())) < FEW * rows and not allowed:
        raise UnfitModelError(
            f"{what}: its tokenizer has {known:,} tokens, its model a table of {rows:,} words, many of which no text "
            f"has: {copy}; --allow trains it nevertheless"
        )


def _prompts(config: EncoderConfig, own: dict[str, str]) -> dict[str, str]:
    given = {"query": config.query_prefix, "document": config.label_prefix}
    return own | {kind: prefix for kind, prefix in given.items() if prefix}


def _tokenizer(config: EncoderConfig, place: str, offline: bool) -> TextTokenizer:
    from transformers import AutoTokenizer

    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=offline, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UnfitModelError(
            f"encoder {config.name!r}: its tokenizer has no padding token, expected pad_token in tokenizer_config.json"
        )
    if config.ending:
        _end_with(config.ending, tokenizer, config.name)
    return TextTokenizer(tokenizer)


def _end_with(token: str, tokenizer: Any, name: str) -> None:
    """Let every text end with a token, by the rules that are saved with the tokenizer. Raises XMCBenchError."""
    from tokenizers import processors

    vocabulary, backend = tokenizer.get_vocab(), getattr(tokenizer, "backend_tokenizer", None)
    if token not in vocabulary or backend is None:
        what = "is not one of tokenizers (Rust)" if backend is None else f"has no token {token!r}"
        raise XMCBenchError(f"encoder {name!r}: ending: its tokenizer {what}")
    whole, bare = (backend.encode("a", add_special_tokens=special) for special in (True, False))
    if whole.tokens[-1] == token:
        return  # it does so already, as one that was saved
    start = whole.special_tokens_mask.index(0) if 0 in whole.special_tokens_mask else 0
    around = [*whole.tokens[:start], "$A", *whole.tokens[start + len(bare) :], token]
    marks = [(mark, vocabulary[mark]) for mark in dict.fromkeys(around) if mark != "$A"]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=marks)


def _settings(config: EncoderConfig, place: str, offline: bool) -> Any:
    import transformers

    with quiet():
        settings = transformers.AutoConfig.from_pretrained(place, local_files_only=offline, trust_remote_code=False)
    if getattr(settings, "is_encoder_decoder", False):
        raise UnfitModelError(
            f"encoder {config.name!r} is an encoder with a decoder ({settings.model_type}), whose states are not those "
            "of the text's tokens: expected the folder of an encoder or a decoder alone, as BERT's or Qwen's"
        )
    for name in (getattr(settings, "architectures", None) or ()) if not config.incomplete else ():
        named = getattr(getattr(getattr(transformers, str(name), None), "config_class", None), "model_type", None)
        if named not in (None, settings.model_type):
            raise UnfitModelError(
                f"encoder {config.name!r}: config.json has architectures: {name}, which is a {named}, and model_type: "
                f"{settings.model_type}: expected those of one model; --allow trains it nevertheless"
            )
    if config.hidden_dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(settings, name):
                setattr(settings, name, config.hidden_dropout)
    if config.layers is not None:
        config.check_layers(settings.num_hidden_layers)
        settings.num_hidden_layers = config.layers
    return settings


def _no_pooler(settings: Any) -> dict[str, bool]:
    """A pooler would be parameters that nothing trains."""
    return {"add_pooling_layer": False} if settings.model_type in {"bert", "roberta", "mpnet"} else {}
