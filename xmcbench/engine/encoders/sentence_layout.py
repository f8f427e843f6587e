"""The files by which sentence-transformers opens a saved encoder. They are plain JSON: the library is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xmcbench.engine.encoders.settings import EncoderConfig

POOLING = "1_Pooling"


def write_sentence_layout(directory: Path, config: EncoderConfig, dimension: int, max_length: int) -> None:
    """Make `SentenceTransformer(directory)` pool and normalise as `config` says, beside what `Encoder.save` wrote.

    Texts are cut at `max_length` tokens. The names are those of sentence-transformers 2, which later versions read too.
    """
    modules = [("Transformer", ""), ("Pooling", POOLING)]
    if config.normalize:
        modules.append(("Normalize", "2_Normalize"))  # has no settings, so no folder either
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"model_type": "SentenceTransformer", "similarity_fn_name": "dot"},
        f"{POOLING}/config.json": {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": config.pooling == "cls",
            "pooling_mode_mean_tokens": config.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }
    (directory / POOLING).mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
