"""A language model behind an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama, `transformers serve`, a host."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from xmcbench.errors import check_extra, import_extra
from xmcbench.errors.secrets import beginning, redact, remember
from xmcbench.teachers.prompts import (
    Prompt,
    first_words,
    has_several_labels,
    read_answer,
    read_answers,
    read_labels,
    template,
)
from xmcbench.teachers.teacher import CUT, REFUSED, Answers, Pairs, Replies, Teacher, TeacherError, Vectors
from xmcbench.trial.run import UNPARSED, YES
from xmcbench_plugins.teachers.refusals import (
    LIMITS,
    OF_PROMPT,
    QUOTED,
    RETRIED,
    check_reply,
    filtered,
    said,
    unsupported,
)

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
TOKENS_OF_A_WORD = 4 / 3  # about, of English
TEXTS = 32  # of a request for embeddings
BYTES_OF_A_TOKEN = 4  # about, of English
NO_KEY = "none"  # sent to a server that needs no key
RESERVED = ("input", "messages", "model", "n", "stream")  # fields that the harness writes or relies on


class _Request(NamedTuple):
    """One prompt, the indices of the pairs or the document that it asks about, and the most tokens of its reply."""

    places: range
    prompt: str
    tokens: int


class _Texts(NamedTuple):
    """Texts of one request for embeddings, and their indices."""

    places: range
    texts: Sequence[str]


class _Reply(NamedTuple):
    """What a server replied to one prompt; `tokens` are those of prompt and completion, divided among its places."""

    choice: Any
    text: str
    thoughts: str  # that the server keeps apart from the text
    tokens: list[np.ndarray]
    cut: bool = False  # at its limit of tokens
    refusal: str = ""  # why the prompt was refused

    @property
    def thought(self) -> bool:
        return bool(self.thoughts)


class Endpoint(Teacher):
    """Asks a chat model for one word per label, or a model of embeddings, with several requests in flight.

    Requests are sent document by document: their prompts share a prefix, so that a server with a prefix cache reads
    each document once. A request that fails temporarily (429, 5xx, a time-out, a broken connection, a reply that is no
    completion) is retried with a growing delay. One that keeps failing, and any that is refused for what all requests
    have in common (401, 404, a parameter), raises TeacherError after the answers to the other requests in flight have
    arrived. A prompt that is refused for its own sake (400, 413, 422: too long, filtered) has no answer: REFUSED.
    """

    name = "openai"
    summary = "a chat model, or one of embeddings, behind an OpenAI-compatible endpoint"
    version = 2  # replies with thoughts are read, and have room

    class Config(Teacher.Config):
        not_in_identity: ClassVar[frozenset[str]] = Teacher.Config.not_in_identity | {
            "base_url",
            "key_variable",
            "concurrency",
            "timeout",
            "retries",
            # A document is known by what is left of it, and a reply that was cut is not kept.
            "max_words",
            "answer_tokens",
        }

        model: str = Field(min_length=1, description="name of the model at the endpoint")
        revision: str = Field("", description="distinguishes models with the same name")
        base_url: str | None = Field(
            None, description="address of the endpoint; null: $OPENAI_BASE_URL, else the hosted one"
        )
        key_variable: str = Field("OPENAI_API_KEY", description="environment variable that holds the key, if any")
        prompt: Prompt = Field("eurlex-4k", description="name of a prompt, or a template")
        labels_per_prompt: int = Field(10, gt=0, description="labels of a document in one prompt with {labels}")
        max_words: int = Field(430, gt=0, description="words to which a document is truncated")
        temperature: float = Field(0.0, ge=0, description="0: the most probable answer")
        answer_tokens: int = Field(
            2048, gt=0, description="most tokens of a reply, with the thoughts before its answer"
        )
        logprobs: bool = Field(False, description="ask for the probability of the answer, as its confidence")
        request: dict[str, Any] = Field(
            {}, description="further fields of the request body; null leaves out a field that a model refuses"
        )
        concurrency: int = Field(16, gt=0, description="concurrent requests")
        timeout: float = Field(120.0, gt=0, description="seconds per request")
        retries: int = Field(8, ge=0, description="retries of a request, at most 8 seconds apart")

        @field_validator("base_url")
        @classmethod
        def _no_secret(cls, url: str | None) -> str | None:
            parts = urlsplit(url or "http://")
            if parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query or parts.fragment:
                raise ValueError("expected http://... or https://... without user, password or query")
            return url

        @field_validator("request")
        @classmethod
        def _of_others(cls, request: dict[str, Any]) -> dict[str, Any]:
            if reserved := [name for name in RESERVED if name in request]:
                raise ValueError(f"found {reserved[0]}, which the teacher writes itself")
            return request

        @field_validator("key_variable")
        @classmethod
        def _a_name(cls, name: str) -> str:
            if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
                raise ValueError("expected the name of an environment variable, never the key itself")
            return name

    config: Config

    def __init__(self, config: Teacher.Config) -> None:
        super().__init__(config)
        self._several = has_several_labels(self.template)
        self._per_prompt = self.config.labels_per_prompt if self._several else 1
        self._without_answer = ""
        self._fault = ""  # of the latest reply that was not used
        self._told_retry = False
        self._told_wrong = False  # whether a count of tokens was not believed

    def identity(self) -> dict[str, Any]:
        """What the answers depend on besides the bytes of a prompt. Version 2 has the answers of version 1."""
        identity: dict[str, Any] = super().identity() | {"teacher": self.name}
        identity["request"] = {name: value for name, value in self.config.request.items() if name not in LIMITS}
        if not self._several:
            del identity["labels_per_prompt"]
        return identity

    def reads(self, document: str) -> str:
        return first_words(document, self.config.max_words)

    @property
    def longest_document(self) -> float:
        return TOKENS_OF_A_WORD * self.config.max_words

    @property
    def pairs_per_prompt(self) -> int:
        return self._per_prompt

    @property
    def without_answer(self) -> str:
        return self._without_answer

    @property
    def title(self) -> str:
        return f"openai {self.config.model}"

    @property
    def template(self) -> str:
        return template(self.config.prompt)

    @property
    def batch_size(self) -> int:
        return 8 * self.config.concurrency * self._per_prompt

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        for batches in self._replied(self._requests(pairs), self._answers):
            columns = zip(*(vars(answers).values() for answers in batches), strict=True)
            yield Answers(*map(np.concatenate, columns))

    def write(self, documents: Sequence[str], prompt: str, tokens: int) -> Iterator[Replies]:
        requests = (
            _Request(range(place, place + 1), prompt.format(document=self.reads(text)), tokens)
            for place, text in enumerate(documents)
        )
        for replies in self._replied(requests, self._reply):
            yield from replies

    def embed(self, texts: Sequence[str]) -> Iterator[Vectors]:
        starts = range(0, len(texts), TEXTS)
        requests = (
            _Texts(range(start, min(start + TEXTS, len(texts))), texts[start : start + TEXTS]) for start in starts
        )
        for batches in self._replied(requests, self._vectors):
            yield from batches

    def _replied(self, requests: Iterator[R], read: Callable[[R], T]) -> Iterator[list[T]]:
        """What `read` makes of each request, in lists of those that were finished together."""
        from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

        _ = self._client  # a missing key or package is no failed request
        with ThreadPoolExecutor(self.config.concurrency) as threads:
            in_flight: dict[Future[T], None] = {}
            problem: BaseException | None = None
            while True:
                if problem is None:
                    fresh = islice(requests, self.config.concurrency - len(in_flight))
                    in_flight |= {threads.submit(read, request): None for request in fresh}
                if not in_flight:
                    break
                done = wait(in_flight, return_when=FIRST_COMPLETED).done
                in_flight = {future: None for future in in_flight if future not in done}
                problem = problem or next((failure for future in done if (failure := future.exception())), None)
                if batches := [future.result() for future in done if future.exception() is None]:
                    yield batches
        if problem is not None:
            raise self._described(problem) from None  # the context may contain the request, and so the key

    def close(self) -> None:
        if client := self.__dict__.pop("_client", None):
            client.close()

    def check_machine(self) -> None:
        check_extra("openai", "openai", "the teacher 'openai'")
        self._key()

    def _key(self) -> str | None:
        """The key, if there is one. Raises TeacherError where the hosted endpoint is meant, which needs one."""
        settings = self.config
        key = os.environ.get(settings.key_variable)
        if key:
            remember(key)
        if not key and settings.base_url is None and "OPENAI_BASE_URL" not in os.environ:
            raise TeacherError(
                f"teacher {self.title}: expected a key in the environment variable {settings.key_variable}, or "
                "base_url, the address of a server"
            )
        return key

    @cached_property
    def _client(self) -> Any:
        settings, openai, key = self.config, import_extra("openai", "openai", "the teacher 'openai'"), self._key()
        return openai.OpenAI(
            api_key=key or NO_KEY,
            base_url=settings.base_url,
            timeout=settings.timeout,
            max_retries=settings.retries,
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [self._tell_of_retry], "response": [self._check_reply]}
            ),
        )

    def _check_reply(self, response: Any) -> None:
        """Keep why a reply is not used, to say it where the request is sent again. Raises as `check_reply`."""
        if response.is_error:
            self._fault = f"answers {response.status_code}"
        try:
            check_reply(response)
        except Exception as problem:
            self._fault = f"sends what cannot be read ({problem})"
            raise

    def _tell_of_retry(self, request: Any) -> None:
        """Say once that the client sends a request again, and why."""
        if int(request.headers.get("x-stainless-retry-count", 0)) and not self._told_retry:
            self._told_retry = True
            reason = self._fault or f"does not answer within {self.config.timeout:g} seconds, or breaks off"
            again = "such requests are sent again, up to %d times each, which takes time"
            _log.warning(f"warning: teacher %s: its server %s: {again}", self.title, reason, self.config.retries)

    def _requests(self, pairs: Pairs) -> Iterator[_Request]:
        for run in pairs.runs():
            document = self.reads(pairs.documents[run.start])
            for start in run[:: self._per_prompt]:
                places = range(start, min(start + self._per_prompt, run.stop))
                labels = [pairs.labels[place] for place in places]
                numbered = "\n".join(f"{number}. {label}" for number, label in enumerate(labels, 1))
                prompt = self.template.format(document=document, label=labels[0], labels=numbered)
                yield _Request(places, prompt, self.config.answer_tokens)

    def _answers(self, request: _Request) -> Answers:
        """The answers to one prompt. A label without one is UNPARSED, CUT or REFUSED."""
        reply = self._completion(request)
        if reply.refusal:
            answers = np.full(len(request.places), REFUSED, np.int8)
        elif self._several:
            answers = read_answers(reply.text, len(request.places))
        else:
            answers = np.array([read_answer(reply.text, thought=reply.thought)], np.int8)
        if reply.cut:
            answers[answers == UNPARSED] = CUT
        if (answers < 0).any():
            self._note(reply, f"answer_tokens: {self.config.answer_tokens}")
        confidence = np.where(answers < 0, 0.0, _probability(reply, self._several)).astype(np.float32)
        return Answers(np.array(request.places), answers, confidence, *reply.tokens)

    def _reply(self, request: _Request) -> Replies:
        """What the model writes to one prompt: UNPARSED, CUT or REFUSED where it lists no label."""
        reply = self._completion(request)
        kind = YES if read_labels(reply.text) else REFUSED if reply.refusal else CUT if reply.cut else UNPARSED
        if kind != YES:
            self._note(reply, f"{request.tokens} tokens of a reply")
        prompt, completion = reply.tokens
        return Replies(np.array(request.places), [reply.text], prompt, completion, np.array([kind], np.int8))

    def _note(self, reply: _Reply, limit: str) -> None:
        """Keep what a reply without an answer was, and what would mend it."""
        if reply.refusal:
            self._without_answer = f"the last prompt was refused: {reply.refusal}"
            return
        mend = f"raise the limit ({limit})" if reply.cut else "change prompt, or the model"
        ended = ", which its limit of tokens cut" if reply.cut else ""
        self._without_answer = f"a reply{ended}: {_quoted(reply.text or reply.thoughts)}; {mend}"

    def _completion(self, request: _Request) -> _Reply:
        """What completes a prompt. The client retries failed requests, see `check_reply`."""
        settings, places = self.config, len(request.places)
        fields = {
            "temperature": settings.temperature,
            "max_tokens": request.tokens,
            **({"logprobs": True} if settings.logprobs else {}),
        }
        wanted = {name: value for name, value in (fields | settings.request).items() if value is not None}
        own = {name: wanted.pop(name) for name in fields if name in wanted}
        messages = [{"role": "user", "content": request.prompt}]
        try:
            completion = self._client.chat.completions.create(
                model=settings.model, messages=messages, **own, extra_body=wanted or None
            )
        except Exception as problem:
            if getattr(problem, "status_code", None) in OF_PROMPT and not unsupported(problem, fields | wanted):
                nothing = [np.zeros(places, np.int64)] * 2
                return _Reply(None, "", "", nothing, refusal=said(problem))
            raise
        choice, usage = completion.choices[0], completion.usage
        if completion.model:
            self.served_as.add(str(completion.model))
        tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        text, message = choice.message.content or "", choice.message
        thoughts = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
        return _Reply(
            choice,
            text,
            thoughts if isinstance(thoughts, str) else "",
            [_divided(total, places) for total in tokens],
            cut=choice.finish_reason == "length",
            refusal=filtered(choice),
        )

    def _vectors(self, request: _Texts) -> Vectors:
        """The embeddings of some texts, with the tokens that the server charges, divided by the texts' bytes.

        A count that no tokenizer could give is not believed: about `BYTES_OF_A_TOKEN` bytes are a token then.
        """
        wanted = {name: value for name, value in self.config.request.items() if value is not None}
        reply = self._client.embeddings.create(
            model=self.config.model,
            input=[text or " " for text in request.texts],
            encoding_format="float",
            extra_body=wanted or None,
        )
        if reply.model:
            self.served_as.add(str(reply.model))
        sizes = np.array([len(text.encode()) for text in request.texts], np.int64)
        told = getattr(reply.usage, "prompt_tokens", None)
        least = sum(1 + len(text.split()) // 4 for text in request.texts)  # a server may cut long texts itself
        if not isinstance(told, int) or not least <= told <= int(sizes.sum()) + 8 * len(sizes):
            spent = 1 + sizes // BYTES_OF_A_TOKEN
            if not self._told_wrong:
                self._told_wrong = True
                _log.warning(
                    "warning: teacher %s: its server counts %s tokens in %d texts of %s bytes, which cannot be: %s are "
                    "charged, by their length",
                    *(self.title, told, len(sizes), f"{sizes.sum():,}", f"{spent.sum():,}"),
                )
        else:
            ends = np.rint(told * np.cumsum(1 + sizes) / (1 + sizes).sum()).astype(np.int64)
            spent = np.diff(ends, prepend=0)
        rows = sorted(reply.data, key=lambda entry: entry.index)
        vectors = np.array([entry.embedding for entry in rows], np.float32)
        return Vectors(np.array(request.places), vectors, spent)

    def _described(self, problem: BaseException) -> TeacherError:
        """The error for a request that kept failing: one line, without secrets."""
        status = getattr(problem, "status_code", None)
        address = urlsplit(str(self._client.base_url))._replace(query="").geturl()
        who, cached = f"teacher {self.title} at {address}", "; its earlier answers are cached"
        if status is not None and 400 <= status < 500 and status not in RETRIED:
            mend = self._mending(problem, status)
            return TeacherError(redact(f"{who} refuses the requests ({status}: {said(problem)}){mend}{cached}"))
        cause = problem.__cause__ or ""  # gives the reason of a failed connection
        text = beginning(" ".join(f"{problem} {cause}".split()), 300) or type(problem).__name__
        kind = type(problem).__name__ + (f" {status}" if status else "")
        tries = f"does not answer after {self.config.retries + 1} tries"
        return TeacherError(redact(f"{who} {tries} ({kind}: {text}){cached}"))

    def _mending(self, problem: BaseException, status: int) -> str:
        """What would mend a request that is refused for what all requests have in common."""
        if status in OF_PROMPT:
            fields = {"temperature": None, "max_tokens": None, "logprobs": None, **self.config.request}
            name = unsupported(problem, fields)
            return f"; `request: {{{name}: null}}` leaves that field out" if name in fields else ""
        by_status = {
            401: f"set the key in ${self.config.key_variable}",
            403: f"set a key that may ask in ${self.config.key_variable}",
            404: "set base_url, with its /v1, and model",
        }
        return f"; {by_status[status]}" if status in by_status else ""


def _quoted(text: str) -> str:
    """The beginning of a text as one line in quotation marks."""
    line = " ".join(text.split())
    return repr(beginning(line, QUOTED) + (" ..." if len(line) > QUOTED else ""))


def _probability(reply: _Reply, several: bool) -> float:
    """The probability of the token that holds the answer, or 1 if the endpoint does not return it."""
    if several:
        return 1.0
    tokens = (reply.choice.logprobs.content if reply.choice and reply.choice.logprobs else None) or []
    words = [token.logprob for token in tokens if read_answer(token.token) != UNPARSED]
    return math.exp(min(0.0, words[-1 if reply.thought else 0])) if words else 1.0


def _divided(total: int, count: int) -> np.ndarray:
    """`total` divided into `count` whole numbers that are as equal as possible, int64 [count]."""
    return np.asarray(np.diff(total * np.arange(count + 1) // count))
