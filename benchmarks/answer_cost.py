"""What an answer costs beside its quality: the models of suites/real/serving.yaml and serving-minilm.yaml.

    python benchmarks/answer_cost.py --data DIRECTORY --store STORE --markdown docs/serving.md --figures docs/pictures

`--set budget.flops=2e12` gives the transformers no larger a budget than the other methods; `--dataset NAME` asks for
other datasets than those of the suites. Trains what the store lacks, one thread each, and prints what
`xmcbench answer-cost` says of the models, in one thread.
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
    parser.add_argument("--dataset", action="append", metavar="NAME", help="in place of the suites' own; repeatable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a change of both suites")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also draw quality against milliseconds")
    given = parser.parse_args()
    places = ["--data", str(given.data), "--store", str(given.store)]
    changed = [part for name in given.dataset or [] for part in ("--dataset", name)]
    changed += [part for change in given.set for part in ("--set", change)]
    asked = dict[str, None]()
    for suite in SUITES:
        xmcbench("run", str(suite), *changed, *places, stdout=sys.stderr)
        written = yaml.safe_load(suite.read_text())
        datasets = given.dataset or written["datasets"]
        asked |= dict.fromkeys(f"{dataset}/{label}" for dataset in datasets for label in written["methods"])
    figures = ["--figures", str(given.figures)] if given.figures else []
    measuring = ["--search", SEARCHES, "--texts", str(given.texts), *figures]
    text = xmcbench("answer-cost", *asked, *measuring, *places, stdout=subprocess.PIPE)
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
