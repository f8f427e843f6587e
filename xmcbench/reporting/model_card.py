"""The card of a trained model: the README.md that stands beside its files, made from the trial's record."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from xmcbench.reporting.describe import for_people, metric_rows, reproducing_suite
from xmcbench.reporting.numbers import printable
from xmcbench.reporting.rows import budget_text
from xmcbench.trial.record import Record

SENTENCE_TRANSFORMERS = """\
Scores are inner products of a text's embedding with the labels' vectors:

```python
import json
from pathlib import Path

from huggingface_hub import hf_hub_download
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

repository = "{repository}"
labels = json.loads(Path(hf_hub_download(repository, "labels.json")).read_text(encoding="utf-8"))
index = load_file(hf_hub_download(repository, "vectors.safetensors"))["index"].float()
query = SentenceTransformer(repository, device="cpu").encode_query(["a text"], convert_to_tensor=True)
scores, ids = (query @ index.T).topk(5)
print([labels[label] for label in ids[0].tolist()])
```

With xmcbench and the dataset"""

XMCBENCH = """\
 `{dataset}`:

```sh
hf download {repository} --local-dir results/trials/{key}/model
cp results/trials/{key}/model/record.json results/trials/{key}/
xmcbench predict {key} --text "a text"
```"""


def model_card(record: Record, repository: str, sentence_transformers: bool) -> str:
    """The card in Markdown, with the hub's metadata at its top.

    `sentence_transformers` says that the library opens the files, and that `labels.json` is among them.
    """
    trial = record.trial
    tags = ["xmcbench", "extreme-multi-label-classification"]
    metadata = {
        "library_name": "sentence-transformers" if sentence_transformers else "xmcbench",
        "pipeline_tag": "sentence-similarity" if sentence_transformers else "text-classification",
        "tags": [*tags, "sentence-transformers"] if sentence_transformers else tags,
    }
    first = (
        f"The method {_code(trial.method)} ({_text(trial.distribution)} {_text(trial.version)}), trained on the dataset"
        f" {_code(trial.dataset)} with a budget of {budget_text(trial.budget.limits())} and seed {trial.seed}."
    )
    sections = {section.title: section.rows for section in for_people(record)}
    load = SENTENCE_TRANSFORMERS if sentence_transformers else "With xmcbench, the method's package and the dataset"
    parts = (
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {_text(trial.dataset)}/{_text(trial.label)}",
        first,
        "## Metrics\n\nOn the test queries, in per cent, with 95 % intervals over them.",
        _table(("metric", "value", "95 %"), metric_rows(record)),
        "## Loading",
        (load + XMCBENCH).format(repository=repository, dataset=trial.dataset, key=record.key),
        *(
            f"## {title}\n\n{_table((title.lower(), 'value'), sections[title])}"
            for title in ("Settings", "Cost", "Provenance")
            if title in sections
        ),
        f"## Training it again\n\nWith `xmcbench run suite.yaml`:\n\n```yaml\n{reproducing_suite(record).strip()}\n```",
    )
    return "\n\n".join(parts) + "\n"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(headings), *(tuple(map(_text, row)) for row in rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(text: str) -> str:
    """The text without meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", printable(text))


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '')}`"
