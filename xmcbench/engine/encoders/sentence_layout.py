"""The files by which sentence-transformers opens a saved encoder. They are plain JSON: the library is not needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SentenceModule:
    """One of the modules that sentence-transformers applies in turn: its class, its folder, its JSON files by name.

    Class names are those of sentence-transformers 2, which later versions read too.
    """

    kind: str
    folder: str = ""  # within the model's folder; empty: that folder itself
    files: dict[str, Any] = field(default_factory=dict)


def write_sentence_layout(directory: Path, modules: Sequence[SentenceModule], prompts: dict[str, str]) -> None:
    """Make `SentenceTransformer(directory)` apply these modules, whose weights are in their folders already.

    `prompts` are put before queries and documents.
    """
    index = [
        {"idx": i, "name": str(i), "path": module.folder, "type": f"sentence_transformers.models.{module.kind}"}
        for i, module in enumerate(modules)
    ]
    files: dict[str, Any] = {
        "modules.json": index,
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "similarity_fn_name": "dot",
            **({"prompts": prompts} if prompts else {}),
        },
    }
    files |= {f"{module.folder}/{name}".lstrip("/"): what for module in modules for name, what in module.files.items()}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
