"""A language model behind an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama, `transformers serve`, a host."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from xmcbench.errors import import_extra
from xmcbench.files.secrets import redact, remember
from xmcbench.teachers.prompts import Prompt, has_several_labels, read_answer, read_answers, template
from xmcbench.teachers.teacher import Answers, Pairs, Replies, Teacher, TeacherError
from xmcbench.trial.run import UNPARSED

T = TypeVar("T")
NO_KEY = "none"  # sent to a server that needs no key


class _Request(NamedTuple):
    """One prompt, the indices of the pairs or the document that it asks about, and the most tokens of its reply."""

    places: range
    prompt: str
    tokens: int


class Endpoint(Teacher):
    """Asks a chat model for one word per label, with several requests in flight.

    Requests are sent document by document: their prompts share a prefix, so that a server with a prefix cache reads
    each document once. A request that fails temporarily (429, 5xx, a time-out, a broken connection, a reply that is no
    completion) is retried with a growing delay. One that keeps failing raises TeacherError after the answers to the
    other requests in flight have arrived.
    """

    name = "openai"
    summary = "a chat model behind an OpenAI-compatible endpoint"

    class Config(Teacher.Config):
        not_in_identity: ClassVar[frozenset[str]] = Teacher.Config.not_in_identity | {
            "base_url",
            "key_variable",
            "concurrency",
            "timeout",
            "retries",
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
        answer_tokens: int = Field(8, gt=0, description="most tokens of an answer, per label of the prompt")
        logprobs: bool = Field(False, description="ask for the probability of the answer, as its confidence")
        request: dict[str, Any] = Field({}, description="further fields of the request body")
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
            _Request(range(place, place + 1), prompt.format(document=_cut(text, self.config.max_words)), tokens)
            for place, text in enumerate(documents)
        )
        for replies in self._replied(requests, self._reply):
            yield from replies

    def _replied(self, requests: Iterator[_Request], read: Callable[[_Request], T]) -> Iterator[list[T]]:
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

    @cached_property
    def _client(self) -> Any:
        settings, openai = self.config, import_extra("openai", "openai", "the teacher 'openai'")
        key = os.environ.get(settings.key_variable)
        if key:
            remember(key)
        if key is None and settings.base_url is None and "OPENAI_BASE_URL" not in os.environ:
            raise TeacherError(
                f"teacher {self.title}: expected a key in the environment variable {settings.key_variable}"
            )
        return openai.OpenAI(
            api_key=key or NO_KEY,
            base_url=settings.base_url,
            timeout=settings.timeout,
            max_retries=settings.retries,
            http_client=openai.DefaultHttpxClient(event_hooks={"response": [_check_reply]}),
        )

    def _requests(self, pairs: Pairs) -> Iterator[_Request]:
        for run in pairs.runs():
            document = _cut(pairs.documents[run.start], self.config.max_words)
            for start in run[:: self._per_prompt]:
                places = range(start, min(start + self._per_prompt, run.stop))
                labels = [pairs.labels[place] for place in places]
                numbered = "\n".join(f"{number}. {label}" for number, label in enumerate(labels, 1))
                prompt = self.template.format(document=document, label=labels[0], labels=numbered)
                yield _Request(places, prompt, self.config.answer_tokens * len(places))

    def _answers(self, request: _Request) -> Answers:
        """The answers to one prompt. A label without an answer is UNPARSED."""
        choice, tokens = self._completion(request)
        text = choice.message.content or ""
        answers = read_answers(text, len(request.places)) if self._several else np.array([read_answer(text)], np.int8)
        confidence = np.where(answers == UNPARSED, 0.0, _probability(choice, self._several)).astype(np.float32)
        return Answers(np.array(request.places), answers, confidence, *tokens)

    def _reply(self, request: _Request) -> Replies:
        """What the model writes to one prompt."""
        choice, tokens = self._completion(request)
        return Replies(np.array(request.places), [choice.message.content or ""], *tokens)

    def _completion(self, request: _Request) -> tuple[Any, list[np.ndarray]]:
        """The choice that completes a prompt, and the tokens of prompt and completion, divided among its places.

        The client retries failed requests, see `_check_reply`.
        """
        settings = self.config
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": settings.temperature,
            "max_tokens": request.tokens,
            **({"logprobs": True} if settings.logprobs else {}),
        }
        completion = self._client.chat.completions.create(**body, extra_body=settings.request or None)
        usage = completion.usage
        tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        return completion.choices[0], [_divided(total, len(request.places)) for total in tokens]

    def _described(self, problem: BaseException) -> TeacherError:
        """The error for a request that kept failing: one line, without secrets."""
        status = getattr(problem, "status_code", None)
        cause = problem.__cause__ or ""  # gives the reason of a failed connection
        text = " ".join(f"{problem} {cause}".split())[:300] or type(problem).__name__
        kind = type(problem).__name__ + (f" {status}" if status else "")
        address = urlsplit(str(self._client.base_url))._replace(query="").geturl()
        return TeacherError(
            redact(
                f"teacher {self.title} at {address} does not answer after {self.config.retries + 1} tries "
                f"({kind}: {text}); its earlier answers are cached"
            )
        )


def _check_reply(response: Any) -> None:
    """Raise for a reply that is not a completion, so that the client treats it as a transport error and retries.

    The client holds the only retry policy: delays grow up to 8 seconds, or are those that the server asks for. On its
    own it retries broken connections, time-outs and the status codes 408, 409, 429 and 5xx, but accepts any JSON.
    """
    if response.is_success:
        response.read()
        if not _is_completion(response):
            http = import_module(type(response).__module__.partition(".")[0])  # httpx or its successor
            raise http.DecodingError("its replies are not completions", request=response.request)


def _is_completion(response: Any) -> bool:
    """Whether a reply is JSON with the fields of a completion."""
    try:
        reply = response.json()
        text, usage = reply["choices"][0]["message"].get("content"), reply.get("usage")
        return isinstance(text, str | None) and (
            usage is None or usage["prompt_tokens"] + usage["completion_tokens"] >= 0
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def _cut(text: str, words: int) -> str:
    """The first `words` words of a text, with its white space."""
    ends = (word.end() for word in re.finditer(r"\S+", text))
    return text[: next(islice(ends, words - 1, None), len(text))]


def _probability(choice: Any, several: bool) -> float:
    """The probability of the token that holds the answer, or 1 if the endpoint does not return it."""
    if several:
        return 1.0
    tokens = (choice.logprobs.content if choice.logprobs else None) or []
    words = (token for token in tokens if read_answer(token.token) != UNPARSED)
    return math.exp(min(0.0, next((token.logprob for token in words), 0.0)))


def _divided(total: int, count: int) -> np.ndarray:
    """`total` divided into `count` whole numbers that are as equal as possible, int64 [count]."""
    return np.asarray(np.diff(total * np.arange(count + 1) // count))
