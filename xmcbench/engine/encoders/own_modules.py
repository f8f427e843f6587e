"""The modules by which sentence-transformers makes one vector of a transformer's states: those of a saved folder, and
the files by which it opens a saved encoder. These are plain JSON: the library is not needed.

Legend: M texts, W tokens of the longest text, H hidden size of the transformer, D dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from xmcbench.engine.encoders.settings import MODULES, SETTINGS, WEIGHTS, EncoderConfig
from xmcbench.errors import XMCBenchError, shown, suggest

PROMPTS = "config_sentence_transformers.json"  # in a folder of sentence-transformers
OWN = "own_modules.json"  # in a folder that `OwnModules.save` wrote
LIBRARY = "sentence_transformers."
PREFIXES = {"query": "query_prefix", "document": "label_prefix"}  # the settings in place of prompts
LABEL_PROMPTS = ("document", "passage", "corpus")  # the first that there is, as in `encode_document`


@dataclass(frozen=True)
class SentenceModule:
    """One of the modules that sentence-transformers applies in turn: its class, its folder, its JSON files by name.

    Class names are those of sentence-transformers 2, which later versions read too.
    """

    kind: str
    folder: str = ""  # within the model's folder; empty: that folder itself
    files: dict[str, Any] = field(default_factory=dict)


def saved_modules(directory: Path) -> list[SentenceModule]:
    """The modules in the order in which sentence-transformers applies them. Raises XMCBenchError."""
    file = directory / MODULES
    entries = _read_json(file)
    if not isinstance(entries, list) or not all(isinstance(e, dict) and {"type", "path"} <= e.keys() for e in entries):
        raise XMCBenchError(f"{file}: expected a list of modules, each with type and path")
    if foreign := [kind for entry in entries if not (kind := str(entry["type"])).startswith(LIBRARY)]:
        raise XMCBenchError(f"{file}: module {shown(foreign[0])} is not of sentence-transformers")
    return [SentenceModule(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]


def saved_prompts(directory: Path) -> dict[str, str]:
    """What sentence-transformers puts before queries and before documents, by these names."""
    if not (directory / PROMPTS).exists():
        return {}
    settings = _read_json(directory / PROMPTS)
    prompts = dict(settings.get("prompts") or {})
    default = prompts.get(settings.get("default_prompt_name"), "")
    of_labels = (prompts[name] for name in LABEL_PROMPTS if name in prompts)
    return {"query": str(prompts.get("query", default)), "document": str(next(of_labels, default))}


def unused_modules(directory: Path, config: EncoderConfig) -> list[str]:
    """What sentence-transformers does with the folder beyond what the settings say, in words. Raises XMCBenchError."""
    modules, prompts = saved_modules(directory)[1:], saved_prompts(directory)
    kinds = [module.kind for module in modules]
    unused = [kind for kind in dict.fromkeys(kinds) if kind not in ("Pooling", "Normalize")]
    layers = [f"the layers {', '.join(unused)}"] if unused else []
    modes = [
        mode for module in modules if module.kind == "Pooling" for mode in Pooling(directory / module.folder).modes
    ]
    pooling = [f"the pooling {'+'.join(modes)}"] if modes and modes != [config.pooling] else []
    lost = [text for kind, text in prompts.items() if text and not getattr(config, PREFIXES[kind])]
    return pooling + layers + ([f"the prompts {', '.join(map(shown, lost))}"] if lost else [])


class OwnModules(nn.Module):
    """What comes after the transformer in a folder of sentence-transformers: a pooling, dense layers, normalisation."""

    def __init__(self, directory: Path, modules: Sequence[SentenceModule], prompts: dict[str, str]) -> None:
        super().__init__()
        self.prompts = prompts
        self.layers = nn.ModuleList([LAYERS[module.kind](directory / module.folder) for module in modules])

    @classmethod
    def of(cls, directory: Path) -> OwnModules:
        """Those in a folder that sentence-transformers saved. Raises XMCBenchError where one is not known here."""
        if not (directory / MODULES).exists():
            raise XMCBenchError(
                f"{directory}: pooling: own needs a folder of sentence-transformers: found no {MODULES}"
            )
        modules = saved_modules(directory)
        if len(modules) == 1:
            raise XMCBenchError(f"{directory / MODULES}: expected a module Pooling after {modules[0].kind}, found none")
        for position, module in enumerate(modules):
            known = [["Transformer"], ["Pooling"], ["Dense", "Normalize"]][min(position, 2)]
            if module.kind not in known:
                where = f"{directory / MODULES}: module {shown(module.kind)}"
                raise XMCBenchError(f"{where} is not known here: expected {' or '.join(known)}")
        return cls(directory, modules[1:], saved_prompts(directory))

    @classmethod
    def load(cls, directory: Path) -> OwnModules:
        """Those that `save` wrote."""
        content = _read_json(directory / OWN)
        return cls(directory, [SentenceModule(*each) for each in content["modules"]], content["prompts"])

    def forward(self, states_MWH: Tensor, mask_MW: Tensor) -> Tensor:
        """Vectors [M, D] in float32."""
        pooling, *others = self.layers
        vectors_MD: Tensor = pooling(states_MWH, mask_MW)
        for layer in others:
            vectors_MD = layer(vectors_MD)
        return vectors_MD.float()

    def dimension(self, hidden: int) -> int:
        """D, for states of `hidden` dimensions."""
        with torch.no_grad():
            return int(self(torch.zeros(1, 1, hidden), torch.ones(1, 1)).shape[1])

    def save(self, directory: Path) -> None:
        """Write modules and prompts beside the transformer."""
        modules = self.modules_at()
        for module, layer in zip(modules, self.layers, strict=True):
            folder = directory / module.folder
            folder.mkdir(exist_ok=True)
            for name, content in module.files.items():
                (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
            if tensors := {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}:
                save_file(tensors, folder / WEIGHTS)
        names = [(module.kind, module.folder) for module in modules]
        (directory / OWN).write_text(json.dumps({"modules": names, "prompts": self.prompts}), encoding="utf-8")

    def modules_at(self) -> list[SentenceModule]:
        """The modules with their folders, which follow that of the transformer, and their settings."""
        kinds = [(type(layer).__name__, getattr(layer, "settings", {})) for layer in self.layers]
        return [
            SentenceModule(kind, f"{i}_{kind}", {SETTINGS: settings})
            for i, (kind, settings) in enumerate(kinds, start=1)
        ]


class Pooling(nn.Module):
    """Pools states [M, W, H] under a mask [M, W] in one or more ways, side by side, as a folder says."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        file = folder / SETTINGS
        self.settings = _read_json(file)
        if not self.settings.get("include_prompt", True):
            raise XMCBenchError(f"{file}: pooling without the prompt (include_prompt: false) is not known")
        old = [mode for mode, key in OLD_MODES.items() if self.settings.get(key)]
        modes = self.settings.get("pooling_mode", old or "mean")
        self.modes = [modes] if isinstance(modes, str) else list(modes)
        for mode in self.modes:
            if mode not in POOLINGS:
                raise XMCBenchError(f"{file}: unknown pooling {shown(mode)}{suggest(str(mode), POOLINGS)}")

    def forward(self, states_MWH: Tensor, mask_MW: Tensor) -> Tensor:
        return torch.cat([POOLINGS[mode](states_MWH, mask_MW.to(states_MWH.dtype)) for mode in self.modes], dim=1)


def _weighted(states_MWH: Tensor, weights_MW: Tensor) -> Tensor:
    return torch.einsum("mwh,mw->mh", states_MWH, weights_MW)


def _mean(states_MWH: Tensor, mask_MW: Tensor) -> Tensor:
    return _weighted(states_MWH, mask_MW / mask_MW.sum(1, keepdim=True).clamp(min=1e-9))


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda states_MWH, _: states_MWH[:, 0],
    "max": lambda states_MWH, mask_MW: states_MWH.masked_fill(mask_MW[..., None] == 0, -torch.inf).amax(1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda states_MWH, mask_MW: _weighted(
        states_MWH, mask_MW / mask_MW.sum(1, keepdim=True).clamp(min=1e-9).sqrt()
    ),
    "weightedmean": lambda states_MWH, mask_MW: _mean(states_MWH, mask_MW * mask_MW.cumsum(1)),
    "lasttoken": lambda states_MWH, mask_MW: _weighted(
        states_MWH, (mask_MW.cumsum(1) == mask_MW.sum(1, keepdim=True)) * mask_MW
    ),
}


class Dense(nn.Module):
    """The linear layer and activation of a folder. Raises XMCBenchError where they do what is not known here."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        file = folder / SETTINGS
        settings = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"} | _read_json(file)
        path, _, activation = settings["activation_function"].rpartition(".")
        if not path.startswith("torch.nn") or not isinstance(getattr(nn, activation, None), type):
            raise XMCBenchError(f"{file}: activation {shown(settings['activation_function'])} is not one of torch.nn")
        inner = {"sentence_embedding", None}
        if settings.get("use_residual") or {settings.get(f"module_{end}_name") for end in ("input", "output")} - inner:
            raise XMCBenchError(f"{file}: a Dense module with a residual or other names is not known")
        if missing := [name for name in ("in_features", "out_features") if not isinstance(settings.get(name), int)]:
            raise XMCBenchError(f"{file}: {missing[0]}: expected a number of dimensions")
        self.settings = settings
        self.linear = nn.Linear(settings["in_features"], settings["out_features"], bias=settings["bias"])
        self.activation: nn.Module = getattr(nn, activation)()
        try:
            self.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, SafetensorError, RuntimeError) as problem:
            raise XMCBenchError(f"{folder / WEIGHTS}: {' '.join(str(problem).split())}") from problem

    def forward(self, vectors_MH: Tensor) -> Tensor:
        activated_MD: Tensor = self.activation(self.linear(vectors_MH))
        return activated_MD


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors_MH: Tensor) -> Tensor:
        return normalize(vectors_MH, dim=1)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise XMCBenchError(f"{path}: not JSON: {problem}") from problem


# The switches of sentence-transformers before 6, in the order in which their vectors stand side by side.
OLD_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
LAYERS: dict[str, Callable[[Path], nn.Module]] = {
    "Pooling": Pooling,
    "Dense": Dense,
    "Normalize": lambda _: Normalize(),
}
