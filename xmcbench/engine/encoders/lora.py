"""Low-rank adapters of a frozen transformer (LoRA, Hu et al., 2022; rank-stabilised, Kalajdzievski, 2023), by peft."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xmcbench.engine.encoders.settings import LoRAConfig
from xmcbench.errors import XMCBenchError, import_extra

ADAPTERS, ADAPTER_SETTINGS = "adapter_model.safetensors", "adapter_config.json"  # the files that peft writes
PREFIX = "base_model.model."  # of names in the first


def add_adapters(transformer: nn.Module, config: LoRAConfig, name: str, seed: int) -> None:
    """Freeze the transformer of the encoder `name` and add adapters, which change nothing before they are trained.

    Raises XMCBenchError if it lacks a projection that the settings name, or their `adapters` are of another model.
    """
    peft = import_extra("peft", "lora", "lora")
    known = sorted({path.rpartition(".")[2] for path, part in transformer.named_modules() if type(part) is nn.Linear})
    wanted = list(config.projections or known)
    if unknown := [projection for projection in wanted if projection not in known]:
        raise XMCBenchError(f"encoder {name!r} has no projection {unknown[0]!r} (known: {', '.join(known)})")
    model: Any = transformer
    model.to(torch.bfloat16 if config.frozen == "bf16" else torch.float32)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.rank if config.alpha is None else config.alpha,
        use_rslora=config.rank_stabilised,
        lora_dropout=config.dropout,
        target_modules=wanted,
        base_model_name_or_path=model.name_or_path,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(settings)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if config.adapters is not None:
        read_adapters(transformer, Path(config.adapters), name)


def read_adapters(transformer: nn.Module, directory: Path, name: str) -> None:
    """Give the adapters the values that peft saved in `directory`.

    Raises XMCBenchError if there are none, or their names or shapes are not those of the encoder `name`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        saved = {key.removeprefix(PREFIX): value for key, value in load_file(directory / ADAPTERS).items()}
    except (OSError, SafetensorError) as problem:
        raise XMCBenchError(f"{directory / ADAPTERS}: cannot be read ({problem}), expected adapters") from problem
    trained = {key.replace(".default.", "."): p for key, p in transformer.named_parameters() if p.requires_grad}
    for key in sorted(trained.keys() | saved.keys()):
        expected, found = (list(part[key].shape) if key in part else "none" for part in (trained, saved))
        if expected != found:
            raise XMCBenchError(
                f"{directory / ADAPTERS}: {key}: found {found}, expected {expected}: adapters of another model than "
                f"{name!r}, or of other settings"
            )
    with torch.no_grad():
        for key, parameter in trained.items():
            parameter.copy_(saved[key])


def merged(transformer: nn.Module, build: Callable[[Any], nn.Module]) -> nn.Module:
    """A transformer without adapters, whose weights in float32 contain them; `build` makes one of its settings."""
    adapted = import_extra("peft.tuners.lora", "lora", "lora").LoraLayer
    model: Any = transformer
    kept = {key: value for key, value in model.state_dict().items() if "lora_" not in key}
    weights = {key.replace(".base_layer.", "."): value.float() for key, value in kept.items()}
    for path, part in model.named_modules():
        if isinstance(part, adapted):
            weights[f"{path}.weight"] = weights[f"{path}.weight"] + part.get_delta_weight("default").float()
    settings = copy(model.config)
    settings.dtype = torch.float32
    with torch.device("meta"):  # the weights are put in place, not copied
        plain = build(settings)
    plain.load_state_dict(weights, strict=False, assign=True)
    return plain
