"""What a server of a language model refuses: one prompt, or every request; and replies that are no completions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from xmcbench.errors.secrets import beginning

OF_PROMPT = (400, 413, 422)  # status codes of a server that refuses one prompt, or what all requests have in common
RETRIED = (408, 409, 429)  # status codes that the client retries, as 5xx
LIMITS = ("max_tokens", "max_completion_tokens")  # fields that cut a reply; refused where a long prompt leaves no room
CODES = ("unsupported", "unknown", "model_not_found", "invalid_api_key")  # beginnings of codes of errors
QUOTED = 160  # characters of a reply or an error that a message quotes
_NOT_SUPPORTED = re.compile(
    r"(?:un|not |n't )(?:support|recogni[sz]|permit|allow|expect|known)|extra (?:input|field)", re.IGNORECASE
)
_NO_MODEL = re.compile(r"\bmodel\b.*(?:does not exist|not found|unknown)", re.IGNORECASE)


def check_reply(response: Any) -> None:
    """Raise for a reply that is not a completion, so that the client treats it as a transport error and retries.

    The client holds the only retry policy: delays grow up to 8 seconds, or are those that the server asks for. On its
    own it retries broken connections, time-outs and the status codes 408, 409, 429 and 5xx, but accepts any JSON.
    """
    if response.is_success:
        response.read()
        embeds = response.request.url.path.endswith("/embeddings")
        if not (_is_embedding(response) if embeds else _is_completion(response)):
            http = import_module(type(response).__module__.partition(".")[0])  # httpx or its successor
            kind = "an embedding of each text" if embeds else "completions"
            raise http.DecodingError(f"its replies are not {kind}", request=response.request)


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


def _is_embedding(response: Any) -> bool:
    """Whether a reply is JSON with one vector for each text of its request, all of finite numbers and equally long."""
    try:
        texts, reply = json.loads(response.request.content)["input"], response.json()
        vectors = [entry["embedding"] for entry in reply["data"]]
        places = sorted(entry["index"] for entry in reply["data"])
        return (
            places == list(range(len(texts)))
            and {len(vector) for vector in vectors} == {max(1, len(vectors[0]))}
            and all(math.isfinite(number) for vector in vectors for number in vector)
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def unsupported(problem: BaseException, fields: Mapping[str, Any]) -> str:
    """The field of the request, or the code of the error, for which a server refuses every request; empty if none."""
    body = getattr(problem, "body", None)
    body = body if isinstance(body, dict) else {}
    error = body["error"] if isinstance(body.get("error"), dict) else body
    code, parameter = str(error.get("code") or ""), str(error.get("param") or "")
    if isinstance(detail := error.get("detail"), list) and detail and isinstance(detail[0], dict):
        place = detail[0].get("loc")  # of FastAPI: ["body", "max_tokens"]
        parameter = str(place[-1]) if isinstance(place, list) and place else parameter
    message = str(error.get("message") or error.get("detail") or problem)
    named = [name for name in fields if name == parameter or re.search(rf"\b{re.escape(name)}\b", message)]
    if code.startswith(CODES) or (named and _NOT_SUPPORTED.search(message)):
        return named[0] if named else code
    if _NO_MODEL.search(message):
        return "model"
    return parameter if parameter in fields and parameter not in LIMITS else ""


def said(problem: BaseException) -> str:
    """What a server says about a request that it refuses, in a line."""
    body = getattr(problem, "body", None)
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return beginning(" ".join(str(message or problem).split()), QUOTED)


def filtered(choice: Any) -> str:
    """Why a model completed nothing: a filter of the server, or its own refusal; empty where it did."""
    if choice.finish_reason == "content_filter":
        return "content filter"
    return beginning(" ".join(str(getattr(choice.message, "refusal", None) or "").split()), QUOTED)
