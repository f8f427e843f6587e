"""What an answer costs beside its quality: the models of suites/real/serving.yaml and serving-minilm.yaml.

    python benchmarks/answer_cost.py --data DIRECTORY --store STORE --markdown docs/serving.md --figures docs/pictures

`--set budget.flops=5e12` shortens the training of the transformers; `--dataset NAME` asks for other datasets than those
of the suites. Trains what the store lacks, and prints what
`xmcbench answer-cost` says of the models, in one thread.

    python benchmarks/answer_cost.py --large FOLDER --markdown docs/serving.md

asks instead a static encoder of `benchmarks/growth.py` with 1.3 million labels, which it trains for four steps in
FOLDER if none is there, with each kind of label vectors and with clusters. Time, memory and recall of
its rows mean something, its quality does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from growth import Place, run_stage, runner_of
from report import END, options, put

import xmcbench as xb

SUITES = [Path(__file__).parents[1] / "suites" / "real" / f"{name}.yaml" for name in ("serving", "serving-minilm")]
MARK = "<!-- table of answer_cost.py -->"
LARGE = "<!-- table of answer_cost.py --large -->"
SEARCHES = "exact,faiss-hnsw,faiss-ivf"
VECTORS = "float32,bf16,int8,pq"


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
    parser.add_argument("--large", type=Path, metavar="FOLDER", help="the table with 1.3 million labels instead")
    given = parser.parse_args()
    if given.large:
        told(large(given.large.absolute(), given.texts), given.markdown, LARGE)
        return
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
    told(text, given.markdown, MARK)


def large(folder: Path, texts: int) -> str:
    """What the answers of an encoder with 1.3 million labels cost, by label vectors, then by search."""
    place = Place("1.3m", "5k", folder)
    folder.mkdir(parents=True, exist_ok=True)
    run_stage("in-batch", place)
    key = runner_of("in-batch", place).trials()[0].key
    os.environ["XMCBENCH_CACHE"] = str(folder)
    asked = [key, "--texts", str(texts), "--data", str(folder), "--store", str(place.store)]
    kinds = ["--search", "exact", "--vectors", VECTORS], ["--search", "exact,faiss-ivf"]  # a graph takes long to build
    return "\n".join(answer_cost(*asked, *measuring) for measuring in kinds)


def told(text: str, document: Path | None, mark: str) -> None:
    """Print a table, and put it into the document."""
    print(text)
    if document:
        put(f"```text\n{text.rstrip()}\n```", document, mark, END)


def answer_cost(*arguments: str) -> str:
    """What `xmcbench answer-cost` prints, in one thread."""
    command = [sys.executable, "-m", "xmcbench", "answer-cost", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


if __name__ == "__main__":
    main()
