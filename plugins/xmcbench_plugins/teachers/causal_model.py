"""A causal language model in this process. It generates no text: its probabilities of "yes" and "no" are compared.

Legend: N pairs, M pairs of a batch, W tokens of the longest prompt, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from xmcbench.files.pretrained import HUB, UnfitModelError, is_large, loading, place_of, pretrained
from xmcbench.teachers.prompts import OneLabelPrompt, template
from xmcbench.teachers.teacher import Answers, Pairs, Teacher, TeacherError

if TYPE_CHECKING:
    from torch import Tensor

Ids = tuple[int, ...]  # token ids
SEES_AHEAD = 1e-3  # share of the largest logit by which rounding may move one; equal sums are rounded alike


class CausalModel(Teacher):
    """Answers yes if P(yes | prompt) > P(no | prompt), each summed over the spellings of the word.

    The probability of a spelling is the product over its tokens. If the tokenizer has a chat template, the prompt is
    the user's turn and the spelling starts the model's turn. Otherwise a space precedes the spelling.
    """

    name = "transformers"
    summary = "a causal language model from the Hugging Face hub or a folder, scored in this process"
    batch_size = 1024

    class Config(Teacher.Config):
        not_in_identity: ClassVar[frozenset[str]] = Teacher.Config.not_in_identity | {
            "model",
            "device",
            "batch_tokens",
            "document_tokens",  # a document is known by what is left of it
        }

        model: str = Field(min_length=1, description="a folder, or hub:ORGANISATION/NAME for the Hugging Face hub")
        revision: str = Field("main", description="branch, tag or commit of a Hugging Face id")
        prompt: OneLabelPrompt = Field("eurlex-4k", description="name of a prompt, or a template")
        document_tokens: int = Field(430, gt=0, description="tokens to which a document is truncated")
        yes: tuple[str, ...] = Field(("yes", "Yes"), min_length=1, description="spellings of yes")
        no: tuple[str, ...] = Field(("no", "No"), min_length=1, description="spellings of no")
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
            "auto", description="auto: as the model was saved"
        )
        device: str = Field("auto", description="auto: a GPU if there is one")
        batch_tokens: int | None = Field(
            None, gt=0, description="padded tokens of a batch; null: 2,048 on a CPU, 32,768 on a GPU"
        )

    config: Config

    @property
    def title(self) -> str:
        folder = Path(self.config.model)
        return f"transformers {folder.name if folder.is_dir() else self.config.model}"

    @property
    def template(self) -> str:
        return template(self.config.prompt)

    def identity(self) -> dict[str, Any]:
        """A model in a folder is identified by the content of its files, not by the folder's path."""
        folder = Path(self.config.model)
        return {**super().identity(), "model": _content(folder) if folder.is_dir() else self.config.model}

    def check_machine(self) -> None:
        """Raises UnfitModelError unless a folder can be loaded whole and is a causal language model; large ones and
        models of the hub are checked when a trial loads them."""
        name = self.config.model
        if name.startswith(HUB) or is_large(Path(place_of(name, f"teacher {self.title}: {name!r}"))):
            return
        try:
            self._check_causal(self._load("cpu"))
            _ = self._tokenizer
        except TeacherError as problem:
            raise UnfitModelError(str(problem)) from problem

    @property
    def longest_document(self) -> float:
        return self.config.document_tokens

    def reads(self, document: str) -> str:
        return self._cut(document)

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        prompts = self._prompts(pairs)
        for places in self._batches([len(prompt) for prompt in prompts]):
            yes_M, no_M = self.log_probabilities([prompts[place] for place in places])
            margin_M = yes_M - no_M
            yield Answers(
                places,
                (margin_M > 0).astype(np.int8),
                (1 / (1 + np.exp(-np.abs(margin_M)))).astype(np.float32),
                np.array([len(prompts[place]) for place in places], np.int64),
                np.zeros(len(places), np.int64),
            )

    def close(self) -> None:
        self.__dict__.pop("_model", None)  # frees the device memory for the method

    def log_probabilities(self, prompts: Sequence[Ids]) -> tuple[np.ndarray, np.ndarray]:
        """log P(yes) and log P(no) after each prompt, float64 [M] each."""
        import torch

        yes, no = self._spelling_ids(self.config.yes), self._spelling_ids(self.config.no)
        by_spelling: dict[Ids, Tensor] = {}
        with torch.inference_mode():
            # One forward pass serves all spellings that differ only in their last token.
            for prefix in dict.fromkeys(ids[:-1] for ids in (*yes, *no)):
                logits = self._logits([prompt + prefix for prompt in prompts], 1 + len(prefix))
                logs = logits.double().log_softmax(-1)
                for ids in {*yes, *no}:
                    if ids[:-1] == prefix:
                        by_spelling[ids] = sum(logs[:, i, token] for i, token in enumerate(ids))  # type: ignore[assignment]
            yes_M, no_M = (torch.stack([by_spelling[ids] for ids in word]).logsumexp(0) for word in (yes, no))
        return yes_M.cpu().numpy(), no_M.cpu().numpy()

    def _logits(self, texts: Sequence[Ids], count: int) -> Tensor:
        """[M, count, V] logits at the last `count` positions of each text.

        Texts are padded on the left, so that they all end in the same column. Position ids count from the first real
        token of a text.
        """
        import torch

        width, tokenizer = max(map(len, texts)), self._tokenizer
        pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
        ids_MW = torch.full((len(texts), width), pad)
        mask_MW = torch.zeros(len(texts), width, dtype=torch.long)
        for row, ids in enumerate(texts):
            ids_MW[row, width - len(ids) :] = torch.tensor(ids)
            mask_MW[row, width - len(ids) :] = 1
        inputs = {"input_ids": ids_MW, "attention_mask": mask_MW}
        if "position_ids" in self._accepted:
            inputs["position_ids"] = (mask_MW.cumsum(1) - 1).clamp(min=0)
        options = {"logits_to_keep": count} if "logits_to_keep" in self._accepted else {}
        on_device = {name: tensor.to(self._model.device) for name, tensor in inputs.items()}
        logits: Tensor = self._model(**on_device, use_cache=False, **options).logits
        return logits[:, -count:]

    def _prompts(self, pairs: Pairs) -> list[Ids]:
        """The token ids of the prompt of each pair."""
        texts: list[str] = []
        for run in pairs.runs():
            document = self._cut(pairs.documents[run.start])
            texts += [self.template.format(document=document, label=pairs.labels[place]) for place in run]
        chat = self._tokenizer.chat_template is not None
        if chat:
            turns = [[{"role": "user", "content": text}] for text in texts]
            texts = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        token_ids = self._tokenizer(texts, add_special_tokens=not chat, verbose=False)["input_ids"]
        return [tuple(ids) for ids in token_ids]

    def _cut(self, document: str) -> str:
        """The text of the first `document_tokens` tokens of a document."""
        limit, tokenizer = self.config.document_tokens, self._tokenizer
        if not tokenizer.is_fast:
            ids = tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
            return document if len(ids) <= limit else tokenizer.decode(ids[:limit])
        encoding = tokenizer(document, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoding["offset_mapping"]]
        return document if len(ends) <= limit else document[: ends[limit - 1]]

    def _spelling_ids(self, spellings: Sequence[str]) -> list[Ids]:
        """The distinct token ids of spellings of a word."""
        space = "" if self._tokenizer.chat_template is not None else " "
        token_ids = (self._tokenizer(space + text, add_special_tokens=False)["input_ids"] for text in spellings)
        return list(dict.fromkeys(tuple(ids) for ids in token_ids))

    def _batches(self, lengths: list[int]) -> Iterator[np.ndarray]:
        """Indices of prompts in batches of similar length, longest first: a batch that is too large fails early."""
        max_tokens = self.config.batch_tokens or (32_768 if self._model.device.type == "cuda" else 2_048)
        order = np.argsort(lengths, kind="stable")[::-1]
        start = 0
        while start < len(order):
            size = max(1, max_tokens // lengths[order[start]])
            yield order[start : start + size]
            start += size

    @cached_property
    def _accepted(self) -> frozenset[str]:
        return frozenset(inspect.signature(self._model.forward).parameters)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return self._loaded(AutoTokenizer)

    @cached_property
    def _model(self) -> Any:
        import torch

        best = "cuda" if torch.cuda.is_available() else "cpu"
        model = self._load(best if self.config.device == "auto" else self.config.device)
        self._check_causal(model)
        return model

    def _load(self, device: str) -> Any:
        from transformers import AutoModelForCausalLM

        return self._loaded(AutoModelForCausalLM, dtype=self.config.dtype).to(device).eval()

    def _check_causal(self, model: Any) -> None:
        """Raise TeacherError where what a model says at a word depends on later words, as in a masked model.

        The probability of an answer's words would be that of words which the model has seen.
        """
        import torch

        ids = [number for number in range(model.get_input_embeddings().num_embeddings) if number][:3]
        texts_MW = torch.tensor([[ids[0], ids[1]], [ids[0], ids[-1]]], device=model.device)
        with torch.inference_mode():
            first_MV = model(input_ids=texts_MW, attention_mask=torch.ones_like(texts_MW)).logits[:, 0].float()
        if not bool(first_MV.isfinite().all()) or float(first_MV.max() - first_MV.min()) == 0:
            raise TeacherError(
                f"teacher {self.title}: {self.config.model!r} gives all words the same probability, or none: expected "
                "the weights of a trained model"
            )
        if (first_MV[0] - first_MV[1]).abs().max() > SEES_AHEAD * first_MV.abs().max():
            raise TeacherError(
                f"teacher {self.title}: {self.config.model!r} reads the words after the one that it predicts "
                f"({model.config.model_type}): expected a causal language model, which answers by what comes next"
            )

    def _loaded(self, kind: Any, **settings: Any) -> Any:
        name, what = self.config.model, f"teacher {self.title}"
        try:
            with loading(f"{what}: {name!r}", name) as offline:
                options = {"revision": self.config.revision, "local_files_only": offline, **settings}
                if not settings:
                    place = place_of(name, f"{what}: {name!r}")
                    return kind.from_pretrained(place, trust_remote_code=False, **options)
                remedy = "expected a causal language model with its head, which answers by the probabilities of words"
                return pretrained(kind, name, f"{what}: {name!r}", remedy=remedy, **options)
        except UnfitModelError as problem:
            raise TeacherError(str(problem)) from problem


def _content(folder: Path) -> str:
    """SHA-256 of the names and contents of a model's files."""
    whole = sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        with path.open("rb") as file:
            whole.update(f"{path.name} {file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
