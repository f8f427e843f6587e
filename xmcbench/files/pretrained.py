"""Pretrained models from folders and from the Hugging Face hub: loaded whole, or refused in a line.

A name is that of a folder, or `hub:ORGANISATION/NAME`. Nothing else is looked up at the hub.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from xmcbench.errors import XMCBenchError, suggest
from xmcbench.files.network import allow_network, forbid_network

HUB = "hub:"  # before the id of a model of the Hugging Face hub
POOLER = "pooler."  # weights that no pooling here reads
ADAPTER_SETTINGS = "adapter_config.json"  # of peft
SETTINGS = ("config.json", ADAPTER_SETTINGS)  # one of these is in the folder of a model
INDEX = ".index.json"  # ends the name of a file that says which file holds which weight
WEIGHTS = tuple(f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", INDEX))
OTHER_WEIGHTS = ("*.gguf", "*.onnx", "onnx/*.onnx", "*.h5", "*.msgpack", "*.safetensors", "*.bin", "*.pt", "*.pth")
FLOATS = ("F64", "F32", "F16", "BF16")  # the types of weights that are not quantised, in a safetensors file
LARGE = 2 * 2**30  # bytes of a folder whose weights only a trial loads together
LFS = b"version https://git-lfs"  # begins a file that stands for another, which was not fetched
_log = logging.getLogger(__name__)


class UnfitModelError(XMCBenchError):
    """The files of a pretrained model are broken, or do not hold what its settings describe."""


def place_of(name: str, what: str = "") -> str:
    """Where transformers finds the model of this name, `what` in messages: a folder, or an id of the hub.

    Raises UnfitModelError where there is no such folder, or not the whole of it.
    """
    what = what or repr(name)
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    folder = Path(name)
    if not folder.is_dir():
        beside = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        near = suggest(folder.name, beside)
        hub = f"; a model of the Hugging Face hub is written {HUB}{name}" if name.count("/") == 1 and not near else ""
        raise UnfitModelError(f"{what}: no such folder{near}{hub}")
    for path in (path for path in sorted(folder.iterdir()) if path.is_file()):
        with path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise UnfitModelError(
                    f"{what}: {path.name} is a pointer of Git LFS, not the file: fetch it with git lfs pull"
                )
    if (folder / ADAPTER_SETTINGS).is_file():
        if any((folder / file).is_file() for file in WEIGHTS):
            raise UnfitModelError(
                f"{what} holds a whole model and adapters ({ADAPTER_SETTINGS}), expected one of the two: move the "
                "adapters to a folder of their own, which lora: {adapters: FOLDER} names"
            )
        raise UnfitModelError(
            f"{what} holds adapters alone: expected the folder of their model, with lora: {{adapters: {name}}}"
        )
    return name


def is_large(folder: Path) -> bool:
    """Whether the weights of a folder are too many to be loaded before a trial needs them."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) > LARGE


def digests_of(names: Iterable[str]) -> dict[str, str]:
    """What identifies the content of pretrained models, of those `names` that are names of some.

    Of a folder it is a SHA-256 of its files; of a model of the hub the commit that this machine has, or nothing.
    """
    digests = {}
    for name in names:
        if name.startswith(HUB):
            digests[name] = _commit_of(name.removeprefix(HUB))
        elif (folder := Path(name)).is_dir() and any((folder / one).is_file() for one in SETTINGS):
            digests[name] = _content_of(folder)
    return {name: digest for name, digest in digests.items() if digest}


def _content_of(folder: Path) -> str:
    """A digest of the names and contents of the files in a folder and below."""
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder)} {file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _local_files_only(model: str) -> bool:
    """Whether to load `model`, a folder or a hub id, without the network.

    True for a folder, and where the hub does not answer within 5 seconds: transformers itself would wait for half a
    minute. Models in the local cache of the hub are found either way.
    """
    if Path(model).is_dir():
        return True
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import get_session

    try:
        get_session().head(ENDPOINT, timeout=5)
    except Exception:  # of whichever HTTP library huggingface_hub uses
        return True
    return False


def _commit_of(model: str) -> str:
    """The commit of a model of the hub that the local cache has; empty where it has none."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, "config.json")
    return Path(path).parent.name if isinstance(path, str) else ""


@contextmanager
def loading(what: str, name: str) -> Iterator[bool]:
    """Yields whether only files of this machine are read.

    `what` names the model in messages. Raises UnfitModelError for whatever keeps it from being loaded.
    """
    on_hub = name.startswith(HUB)
    try:
        with allow_network() if on_hub else forbid_network():
            yield _local_files_only(name.removeprefix(HUB)) if on_hub else True
    except XMCBenchError:
        raise
    except Exception as problem:  # of transformers, tokenizers, safetensors, huggingface_hub or torch
        raise UnfitModelError(f"{what} cannot be loaded: {_reason(problem, name)}") from problem


def _reason(problem: Exception, name: str) -> str:
    """Why files could not be loaded, and what would mend it, in a line."""
    lines = [line for line in str(problem).strip().splitlines() if line.strip()]
    said = " ".join((lines or [type(problem).__name__])[0].split())
    if type(problem).__name__ == "SafetensorError" or "safetensors" in said.lower() or "deserializing" in said.lower():
        broken = next((path.name for path in sorted(Path(name).glob("*.safetensors"))), "model.safetensors")
        return f"{broken} is truncated or no safetensors file ({said}): copy or save the weights again"
    if type(problem).__name__ == "UnpicklingError" or "weights_only" in said:
        return "pytorch_model.bin is broken or holds more than weights, which is not run: save it as model.safetensors"
    if "backend tokenizer" in said:
        return "found no tokenizer.json: copy the tokenizer's files into the folder"
    if isinstance(problem, KeyError):
        return f"unknown {said} in a settings file"
    if "custom code" in said:
        return "its config.json asks for Python code of its own, which is not run: expected a model of transformers"
    if isinstance(problem, UnicodeDecodeError | json.JSONDecodeError):
        return f"a settings file is not JSON ({said}): copy the folder again"
    return said


@dataclass(frozen=True)
class LoadReport:
    """Which weights of a model its files lacked or held in excess, sorted; those of a pooler are left out."""

    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    unexpected: tuple[str, ...]  # within the model
    of_heads: tuple[str, ...]  # beside the model, as a head for another task

    @classmethod
    def of(cls, model: Any, info: dict[str, Any]) -> LoadReport:
        """The report on a model from the `info` that transformers gives beside it."""
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        parts = {name for name, _ in model.named_children()}
        shapes = {str(entry[0] if isinstance(entry, tuple | list) else entry) for entry in info["mismatched_keys"]}
        unexpected = sorted(key for key in info["unexpected_keys"] if not _of_pooler(key, prefix))
        own = [key for key in unexpected if key.removeprefix(prefix).partition(".")[0] in parts]
        missing = sorted(key for key in info["missing_keys"] if not _of_pooler(key, prefix) and key not in shapes)
        misshapen = sorted(key for key in shapes if not _of_pooler(key, prefix))
        heads = tuple(key for key in unexpected if key not in own)
        return cls(tuple(missing), tuple(misshapen), tuple(own), heads)

    @property
    def problem(self) -> str:
        """Why the model is not what its files describe, with the first key; empty where it is."""
        if self.misshapen:
            shapes = "have other shapes than config.json describes"
            return f"{len(self.misshapen)} of its weights {shapes}, first {self.misshapen[0]!r}"
        if self.missing:
            beside = (*self.unexpected, *self.of_heads)
            instead = f" (found {beside[0]!r} instead)" if beside else ""
            return f"{len(self.missing)} of its weights are not in its files, first {self.missing[0]!r}{instead}"
        if self.unexpected:
            more = f"its files hold {len(self.unexpected)} weights more than config.json describes"
            return f"{more}, first {self.unexpected[0]!r}"
        return ""

    def __str__(self) -> str:
        parts = {"missing": self.missing, "misshapen": self.misshapen, "unexpected": self.unexpected}
        parts["of a head, not used"] = self.of_heads
        counts = {name: f"{len(keys)}, first {keys[0]}" if keys else "0" for name, keys in parts.items()}
        return "; ".join(f"{name}: {count}" for name, count in counts.items())


def _layer(key: str) -> int:
    """The layer that a weight belongs to, the first number in its key; -1 for one of no layer."""
    return next((int(part) for part in key.split(".") if part.isdigit()), -1)


def _of_pooler(key: str, prefix: str) -> bool:
    return key.removeprefix(prefix).startswith(POOLER)


def pretrained(
    kind: Any,
    name: str,
    what: str,
    *,
    remedy: str,
    allowed: bool = False,
    kept_layers: int | None = None,
    **options: Any,
) -> Any:
    """The model of a class of transformers, loaded whole; `what` names it in messages.

    Raises UnfitModelError, with a `remedy`, where weights are missing, in excess or of other shapes, unless that is
    `allowed`: then the missing ones begin at random. Of a model's layers the first `kept_layers` may be loaded alone.
    """
    place = place_of(name, what)
    if Path(place).is_dir():
        _check_files(Path(place), what)
    with quiet():
        model, info = kind.from_pretrained(
            place, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False, **options
        )
    if kept_layers is not None:
        info = {**info, "unexpected_keys": [key for key in info["unexpected_keys"] if _layer(key) < kept_layers]}
    report = LoadReport.of(model, info)
    if (problem := report.problem) and not allowed:
        raise UnfitModelError(f"{what}: {problem}: {remedy}")
    _log.info("%s: loaded; %s", what, report)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """No report and no progress bar of transformers in the block."""
    from transformers.utils import logging as messages

    level, bar = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(level)
        if bar:
            messages.enable_progress_bar()


def _check_files(folder: Path, what: str) -> None:
    """Raises UnfitModelError unless the folder has weights that transformers reads, and all that an index names."""
    present = [name for name in WEIGHTS if (folder / name).is_file()]
    if not present:
        others = (
            str(path.relative_to(folder))
            for kind in OTHER_WEIGHTS
            for path in sorted(folder.glob(kind))
            if path.is_file()
        )
        other = next(others, "")
        raise UnfitModelError(
            f"{what} cannot be loaded: found no {WEIGHTS[0]} in the folder{f' (found {other} instead)' * bool(other)}: "
            "expected weights that save_pretrained of transformers wrote"
        )
    if present[0] == WEIGHTS[0] + INDEX:
        _check_index(folder / present[0], what)


def _check_index(index: Path, what: str) -> None:
    """Raises UnfitModelError unless the files that an index names are in its folder and hold what it says."""
    from safetensors import safe_open

    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        by_file = {str(file): {key for key, other in places.items() if other == file} for file in places.values()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnfitModelError(f"{what}: {index.name}: expected JSON with a weight_map: copy the folder again") from None
    for name, keys in sorted(by_file.items()):
        path = index.parent / name
        if name != path.name or not path.is_file():
            lost = "is not in the folder" if name == path.name else "lies outside of the folder"
            raise UnfitModelError(f"{what}: {index.name} names {name}, which {lost}: copy the whole folder again")
        with safe_open(path, framework="pt") as tensors:
            if absent := sorted(keys - set(tensors.keys())):
                raise UnfitModelError(
                    f"{what}: {index.name} says that {absent[0]!r} is in {name}, which lacks it: save the weights again"
                )


def check_floats(folder: Path, what: str) -> None:
    """Raises UnfitModelError for a weight in a folder's safetensors files that is no float of 16 bits or more, as of
    quantised models: read as floats they are other weights. Only the headers are read."""
    for path, tensors in _opened(folder, what):
        for key in tensors.keys():  # noqa: SIM118  (no mapping)
            kind = tensors.get_slice(key).get_dtype()
            if key.endswith((".weight", ".bias")) and kind not in FLOATS:
                raise UnfitModelError(
                    f"{what}: {path.name}: {key!r} holds numbers of type {kind}, expected {', '.join(FLOATS)}: save "
                    "the weights before they are quantised"
                )


def check_finite(folder: Path, what: str) -> None:
    """Raises UnfitModelError for a weight in a folder's safetensors files that is not finite; one tensor at a time."""
    for path, tensors in _opened(folder, what):
        for key in tensors.keys():  # noqa: SIM118  (no mapping)
            tensor = tensors.get_tensor(key)
            if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
                raise UnfitModelError(not_finite(f"{what}: {path.name}", key))


def not_finite(where: str, key: str) -> str:
    """The message on a weight that is not finite in float32."""
    return (
        f"{where}: {key!r} has a number that is not finite in float32: save the weights again, from before the "
        "training that broke them"
    )


def _opened(folder: Path, what: str) -> Iterator[tuple[Path, Any]]:
    """The safetensors files of a folder, opened one by one. Raises UnfitModelError."""
    from safetensors import SafetensorError, safe_open

    for path in (path for path in sorted(folder.glob("*.safetensors")) if path.is_file()):
        try:
            with safe_open(path, framework="pt") as tensors:
                yield path, tensors
        except SafetensorError as problem:
            raise UnfitModelError(f"{what} cannot be loaded: {_reason(problem, str(folder))}") from problem
