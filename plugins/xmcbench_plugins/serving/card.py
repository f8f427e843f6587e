"""The card of a model on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from xmcbench.reporting.describe import for_people, metric_rows, reproducing_suite
from xmcbench.reporting.rows import budget_text
from xmcbench.reporting.text_table import TextTable, escape_markdown, printable, render_tables
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
    metadata: dict[str, Any] = {"library_name": "xmcbench", "pipeline_tag": "text-classification"}
    metadata["tags"] = ["xmcbench", "extreme-multi-label-classification"]
    if sentence_transformers:
        metadata |= {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
        metadata["tags"].append("sentence-transformers")
    method, dataset = (printable(name).replace("`", "") for name in (trial.method, trial.dataset))
    origin = escape_markdown(printable(f"{trial.distribution} {trial.version}"))
    sections = for_people(record)
    load = SENTENCE_TRANSFORMERS if sentence_transformers else "With xmcbench, the method's package and the dataset"
    parts = (
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---",
        f"# {escape_markdown(printable(f'{trial.dataset}/{trial.label}'))}",
        f"The method `{method}` ({origin}), trained on the dataset `{dataset}` with a budget of "
        f"{budget_text(trial.budget.limits())} and seed {trial.seed}.",
        "## Metrics\n\nOn the test queries, in per cent, with 95 % intervals over them.",
        _table(("metric", "value", "95 %"), metric_rows(record.metrics, record.intervals)),
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


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return render_tables([TextTable("", headings, rows)], "markdown")
