"""What an answer costs beside its quality: the models of suites/real/serving.yaml and serving-minilm.yaml.

    python benchmarks/answer_cost.py --data DIRECTORY --store STORE --markdown docs/serving.md --figures docs/pictures

`--set budget.flops=5e12` shortens the training of the transformers; `--dataset NAME` asks for other datasets than those
of the suites. Trains what the store lacks, and prints what
`xmcbench answer-cost` says of the models, in one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from report import END, options, put

import xmcbench as xb

SUITES = [Path(__file__).parents[1] / "suites" / "real" / f"{name}.yaml" for name in ("serving", "serving-minilm")]
MARK = "<!-- table of answer_cost.py -->"
SEARCHES = "exact,faiss-hnsw,faiss-ivf"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--dataset", action="append", metavar="NAME", help="in place of the suites' own; repeatable")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a change of the transformers' suite"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="LABEL", help="a method to leave out; repeatable"
    )
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also draw quality against milliseconds")
    given = parser.parse_args()
    places: dict[str, Path] = {"data": given.data, "store": given.store}
    keys = dict[tuple[str, str], str]()  # by dataset and label; both suites have `popular`
    for suite in SUITES:
        only = [label for label in yaml.safe_load(suite.read_text())["methods"] if label not in given.without]
        sets = given.set if suite is SUITES[-1] else ()
        done = xb.run(suite, only=only, sets=sets, datasets=given.dataset or (), **places)
        for record in done.measured.records.values():
            keys.setdefault((record.trial.dataset, record.trial.label), record.key)
    figures = ["--figures", str(given.figures)] if given.figures else []
    measuring = ["--search", SEARCHES, "--texts", str(given.texts), *figures]
    text = answer_cost(*keys.values(), *measuring, *(f"--{name}={path}" for name, path in places.items()))
    print(text)
    if given.markdown:
        put(f"```text\n{text.rstrip()}\n```", given.markdown, MARK, END)


def answer_cost(*arguments: str) -> str:
    """What `xmcbench answer-cost` prints, in one thread."""
    command = [sys.executable, "-m", "xmcbench", "answer-cost", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


if __name__ == "__main__":
    main()
