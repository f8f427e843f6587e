"""A language model behind an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama, `transformers serve`, hosted ones."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from xmcbench.files.secrets import redact, remember
from xmcbench.plugins.extras import import_extra
from xmcbench.teachers import reading
from xmcbench.teachers.prompts import Prompt, takes_several, template
from xmcbench.teachers.teacher import Answers, Pairs, Teacher, TeacherError
from xmcbench.trial.judging import UNPARSED

NO_KEY = "none"  # what a server that wants no key is sent


@dataclass(frozen=True)
class _Request:
    """One prompt, and the pairs it asks about."""

    places: range
    prompt: str


class Endpoint(Teacher):
    """Asks a chat model for one word per label, with several requests in flight.

    Requests are sent document by document: their prompts start alike, so that a server that caches prefixes reads each
    document once. A request that fails temporarily (429, 5xx, a time-out, a broken connection, a reply that is no
    completion) is retried after a growing pause. One that fails for good raises TeacherError after the answers to the
    other requests in flight have arrived.
    """

    name = "openai"
    summary = "a chat model behind an OpenAI-compatible endpoint"

    class Config(Teacher.Config):
        indifferent: ClassVar[frozenset[str]] = Teacher.Config.indifferent | {
            "base_url",
            "key_variable",
            "concurrency",
            "timeout",
            "retries",
        }

        model: str = Field(min_length=1, description="as the endpoint calls it")
        revision: str = Field("", description="tells models apart that endpoints call alike")
        base_url: str | None = Field(None, description="of the endpoint; null: $OPENAI_BASE_URL, or the hosted one")
        key_variable: str = Field("OPENAI_API_KEY", description="environment variable that holds the key, if any")
        prompt: Prompt = Field("eurlex-4k", description="name of a prompt, or a template of your own")
        labels_per_prompt: int = Field(10, gt=0, description="labels of a document in one prompt with {labels}")
        max_words: int = Field(430, gt=0, description="words a document is cut at")
        temperature: float = Field(0.0, ge=0)
        answer_tokens: int = Field(8, gt=0, description="most tokens of an answer, for each label of the prompt")
        logprobs: bool = Field(False, description="ask for the answer's probability: the confidence")
        request: dict[str, Any] = Field({}, description="further fields of the request's body")
        concurrency: int = Field(16, gt=0, description="requests under way at once")
        timeout: float = Field(120.0, gt=0, description="seconds for one request")
        retries: int = Field(8, ge=0, description="further tries of a request, up to 8 seconds apart")

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
        self._several = takes_several(self.template)
        self._client: Any = None

    @property
    def title(self) -> str:
        return f"openai {self.config.model}"

    @property
    def template(self) -> str:
        return template(self.config.prompt)

    @property
    def at_once(self) -> int:
        labels = self.config.labels_per_prompt if self._several else 1
        return 8 * self.config.concurrency * labels

    def ask(self, pairs: Pairs) -> Iterator[Answers]:
        client = self._connected()
        waiting = self._requests(pairs)
        with ThreadPoolExecutor(self.config.concurrency) as threads:
            under_way: dict[Future[Answers], None] = {}
            problem: BaseException | None = None
            while True:
                if problem is None:
                    fresh = islice(waiting, self.config.concurrency - len(under_way))
                    under_way |= {threads.submit(self._answers, client, request): None for request in fresh}
                if not under_way:
                    break
                done = wait(under_way, return_when=FIRST_COMPLETED).done
                under_way = {future: None for future in under_way if future not in done}
                problem = problem or next((failure for each in done if (failure := each.exception())), None)
                if answered := [future.result() for future in done if future.exception() is None]:
                    yield _together(answered)
        if problem is not None:
            raise self._described(problem) from None  # its context may hold what was sent

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        if self._client is None:
            settings, openai = self.config, import_extra("openai", "openai", "the teacher 'openai'")
            key = os.environ.get(settings.key_variable)
            if key:
                remember(key)
            hosted = settings.base_url is None and "OPENAI_BASE_URL" not in os.environ
            if key is None and hosted:
                raise TeacherError(
                    f"teacher {self.title}: expected a key in the environment variable {settings.key_variable}"
                )
            self._client = openai.OpenAI(
                api_key=key or NO_KEY,
                base_url=settings.base_url,
                timeout=settings.timeout,
                max_retries=settings.retries,
                http_client=openai.DefaultHttpxClient(event_hooks={"response": [_check_reply]}),
            )
        return self._client

    def _requests(self, pairs: Pairs) -> Iterator[_Request]:
        size = self.config.labels_per_prompt if self._several else 1
        for run in pairs.runs():
            document = _cut(pairs.documents[run.start], self.config.max_words)
            for start in range(run.start, run.stop, size):
                places = range(start, min(start + size, run.stop))
                labels = [pairs.labels[place] for place in places]
                numbered = "\n".join(f"{number}. {label}" for number, label in enumerate(labels, 1))
                prompt = self.template.format(document=document, label=labels[0], labels=numbered)
                yield _Request(places, prompt)

    def _answers(self, client: Any, request: _Request) -> Answers:
        """The answers to one prompt; what was not answered in it is unparsed."""
        completion = self._completion(client, request)
        choice, count = completion.choices[0], len(request.places)
        text = choice.message.content or ""
        answers = reading.several(text, count) if self._several else np.array([reading.one(text)], np.int8)
        confidence = np.where(answers == UNPARSED, 0.0, _probability(choice, self._several)).astype(np.float32)
        usage = completion.usage
        return Answers(
            np.arange(request.places.start, request.places.stop),
            answers,
            confidence,
            _shared_out(usage.prompt_tokens if usage else 0, count),
            _shared_out(usage.completion_tokens if usage else 0, count),
        )

    def _completion(self, client: Any, request: _Request) -> Any:
        """The endpoint's completion of a prompt. The client retries: see `_check_reply`."""
        settings = self.config
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": settings.temperature,
            "max_tokens": settings.answer_tokens * len(request.places),
            **({"logprobs": True} if settings.logprobs else {}),
        }
        return client.chat.completions.create(**body, extra_body=settings.request or None)

    def _described(self, problem: BaseException) -> TeacherError:
        """The error for a request that failed for good: one line, without secrets."""
        status = getattr(problem, "status_code", None)
        cause = problem.__cause__ or ""  # which says why a connection failed
        text = " ".join(f"{problem} {cause}".split())[:300] or type(problem).__name__
        kind = type(problem).__name__ + (f" {status}" if status else "")
        where = urlsplit(str(self._client.base_url))._replace(query="").geturl()
        return TeacherError(
            redact(
                f"teacher {self.title} at {where} does not answer after {self.config.retries + 1} tries "
                f"({kind}: {text}); its earlier answers are cached"
            )
        )


def _together(parts: list[Answers]) -> Answers:
    return Answers(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def _check_reply(response: Any) -> None:
    """Raise for a reply that is no completion: to the client, such a request failed on the way, and it retries it.

    The client has the one retry policy: pauses that grow up to 8 seconds, and those that the server asks for. By itself
    it retries broken connections, time-outs and the status codes 408, 409, 429 and 5xx, but accepts any JSON.
    """
    if response.is_success:
        response.read()
        if not _is_completion(response):
            http = import_module(type(response).__module__.partition(".")[0])  # httpx or its successor
            raise http.DecodingError("its replies are no completions", request=response.request)


def _is_completion(response: Any) -> bool:
    """Whether a reply is JSON of the form that the protocol prescribes."""
    try:
        reply = response.json()
        text, usage = reply["choices"][0]["message"].get("content"), reply.get("usage")
        return isinstance(text, str | None) and (
            usage is None or usage["prompt_tokens"] + usage["completion_tokens"] >= 0
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def _cut(text: str, words: int) -> str:
    """The first `words` words of a text, as they stand in it."""
    ends = (word.end() for word in re.finditer(r"\S+", text))
    return text[: next(islice(ends, words - 1, None), len(text))]


def _probability(choice: Any, several: bool) -> float:
    """That of the token which holds the answer, where the endpoint tells; else 1."""
    tokens = (choice.logprobs.content if choice.logprobs else None) or []
    if several:
        return 1.0
    words = (token for token in tokens if reading.one(token.token) != UNPARSED)
    return math.exp(min(0.0, next((token.logprob for token in words), 0.0)))


def _shared_out(total: int, count: int) -> np.ndarray:
    """int64 [count] that sums to `total`, as even as whole numbers are."""
    parts: np.ndarray = np.diff(total * np.arange(count + 1) // count)
    return parts
