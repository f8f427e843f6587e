"""Families of transformers, each trained, saved, and opened by transformers and sentence-transformers.

    TRANSFORMERS_VERBOSITY=error python benchmarks/encoder_families.py --markdown docs/methods.md

Each encoder is a folder with two layers of 32 units and random weights, which DEXML trains for some steps on a small
catalogue. The last columns are the largest differences between what the trained encoder computes and what the two
libraries compute with the saved folder: of all states of tokens, and of all vectors of texts. No network is needed.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from report import options, report
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from xmcbench import Budget, Progress, Run, data, registry
from xmcbench.engine.encoders.tokenizer import train_tokenizer

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OF_DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
TWO_KEYS = {"num_key_value_heads": 2}
# By family: the class of its settings, and settings beside the shared ones.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("BertConfig", {}),
    "DistilBERT": ("DistilBertConfig", OF_DISTILBERT),
    "RoBERTa": ("RobertaConfig", {}),
    "MPNet": ("MPNetConfig", {}),
    "DeBERTa": ("DebertaV2Config", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "ModernBERT": ("ModernBertConfig", {"global_attn_every_n_layers": 2, "local_attention": 8}),
    "ELECTRA": ("ElectraConfig", {"embedding_size": 32}),
    "XLM-RoBERTa": ("XLMRobertaConfig", {}),
    "Qwen2": ("Qwen2Config", TWO_KEYS),
    "Qwen3": ("Qwen3Config", TWO_KEYS | {"head_dim": 8}),
    "LLaMA": ("LlamaConfig", TWO_KEYS),
    "Mistral": ("MistralConfig", TWO_KEYS),
}
DECODERS = ("Qwen2", "Qwen3", "LLaMA", "Mistral")
# What is trained: the family, and the encoder's settings.
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"pooling": "lasttoken"} if name in DECODERS else {}) for name in FAMILIES),
    ("BERT", {"pooling": "cls", "normalize": False}),
    ("LLaMA", {"pooling": "weightedmean", "query_prefix": "query: "}),
    ("BERT", {"lora": {"rank": 4}}),
    ("Qwen2", {"pooling": "lasttoken", "lora": {"rank": 4, "save": "merged"}}),
    ("MPNet", {"pooling": "own"}),
    ("BERT", {"layers": 1}),
]
STEPS, TEXTS = 10, 60


def save_family(name: str, texts: data.Texts, folder: Path, own: bool) -> None:
    """Write a model of a family with random weights; with `own` a pooling and a dense layer of its own too."""
    kind, more = FAMILIES[name]
    tokenizer = train_tokenizer(texts)
    settings = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id}
    for token in ("bos", "eos", "cls", "sep"):  # ModernBERT's own are beyond a small table
        settings[f"{token}_token_id"] = tokenizer.pad_token_id
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SIZES | settings | more)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if own:
        pooling = Pooling(32, pooling_mode="max")
        dense = Dense(32, 16, activation_function=torch.nn.Tanh())
        SentenceTransformer(modules=[Transformer(str(folder)), pooling, dense]).save(str(folder))


def row(name: str, encoder: dict[str, Any], root: Path) -> dict[str, Any]:
    """What came of one encoder that was trained, saved and opened."""
    train = data.load("catalog-50").training_data()
    folder = root / "mine"
    save_family(name, [*train.texts, *train.label_texts], folder, encoder.get("pooling") == "own")
    kind, losses = registry().method("dexml").thing, list[float]()
    settings = {"encoder": {"name": str(folder), "hidden_dropout": 0.0, **encoder}, "negatives": "in-batch"}
    method = kind(kind.Config.model_validate({**settings, "batch_size": 40, "learning_rate": 3e-3}))

    def note(progress: Progress) -> None:
        losses.extend(progress.metrics[key] for key in ("loss",) if key in progress.metrics)

    places = {"checkpoint": root / "checkpoint", "cache": root / "cache"}
    places["checkpoint"].mkdir()
    method.fit(train, Run(seed=0, budget=Budget(steps=STEPS), report=note, **places))
    saved = root / "model"
    saved.mkdir()
    method.save(saved)
    texts = [train.texts[i] for i in range(TEXTS)]
    wanted = method.embed_texts(texts).numpy()
    found = SentenceTransformer(str(saved), device="cpu").encode_query(texts, show_progress_bar=False)
    inside, outside = method.encoder.transformer.eval(), transformers.AutoModel.from_pretrained(saved).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(saved)(texts, padding=True, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        ours, theirs = (model(**inputs).last_hidden_state[inputs["attention_mask"] > 0] for model in (inside, outside))
    return {
        "family": name,
        "settings": ", ".join(f"{key}: {_yaml(value)}" for key, value in encoder.items()),
        "first and last loss": f"{losses[0]:.2f}, {losses[-1]:.2f}",
        "transformers": f"{float((ours - theirs).abs().max()):.0e}",
        "sentence-transformers": f"{np.abs(found - wanted).max():.0e}",
    }


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'" if str(value).endswith(" ") else str(value)


if __name__ == "__main__":
    parser = options(__doc__)
    arguments = parser.parse_args()
    rows = []
    for name, encoder in CASES:
        with TemporaryDirectory() as folder:
            rows.append(row(name, encoder, Path(folder)))
            print(rows[-1], flush=True)
    report("encoder_families", rows, arguments.markdown, by=("family", "settings"))
