"""What an answer costs beside its quality: the models of suites/real/serving.yaml and serving-minilm.yaml.

    python benchmarks/answer_cost.py --data DIRECTORY --store STORE --markdown docs/serving.md

Trains what the store lacks, one thread each, and prints what `xmcbench answer-cost` says of the models, in one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from report import END, options, put

SUITES = [Path(__file__).parents[1] / "suites" / "real" / f"{name}.yaml" for name in ("serving", "serving-minilm")]
MARK = "<!-- table of answer_cost.py -->"
SEARCHES = "exact,faiss-hnsw,faiss-ivf"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--texts", type=int, default=300)
    given = parser.parse_args()
    places = ["--data", str(given.data), "--store", str(given.store)]
    for suite in SUITES:
        xmcbench("run", str(suite), *places, stdout=sys.stderr)
    labels = dict.fromkeys(label for suite in SUITES for label in yaml.safe_load(suite.read_text())["methods"])
    asked = [*labels, "--search", SEARCHES, "--texts", str(given.texts), *places]
    text = xmcbench("answer-cost", *asked, stdout=subprocess.PIPE)
    print(text)
    if given.markdown:
        put(f"```text\n{text}```", given.markdown, MARK, END)


def xmcbench(*arguments: str, stdout: object) -> str:
    """Run a command of xmcbench in one thread; what it printed where `stdout` is a pipe."""
    command = [sys.executable, "-m", "xmcbench", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=stdout, text=True, env=environment).stdout or ""  # type: ignore[call-overload, no-any-return]


if __name__ == "__main__":
    main()
