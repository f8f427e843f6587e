"""Metrics of the same predictions by xmcbench, PECOS, napkinXC and pyxclib, each in an environment of its own.

Random predictions without ties and random truth, written as CSR matrices; every other program reads them with its own
Python. Equal metrics agree to 1e-6.

    python benchmarks/metric_parity.py --pecos PYTHON --napkinxc PYTHON --pyxclib PYTHON

The environments: `pip install 'numpy<2' libpecos`; `pip install napkinxc`; pyxclib as in plugins/xmcbench_pyxclib.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from report import options, report

from xmcbench.evaluation.evaluator import EVALUATORS, score
from xmcbench.evaluation.metrics import find_hits, inverse_propensity
from xmcbench.evaluation.ranking import rank

KS = (1, 3, 5, 10)
A, B = 0.55, 1.5
TOLERANCE = 1e-6
READ = """
import json, sys
import numpy as np, scipy.sparse as sp
predicted, true, train = (sp.load_npz(f"{sys.argv[1]}/{name}.npz") for name in ("predicted", "true", "train"))
KS = (1, 3, 5, 10)
"""
PECOS = """
from pecos.utils.smat_util import Metrics, sorted_csr
found = Metrics.generate(true, sorted_csr(predicted), topk=max(KS))
values = {f"{name}@{k}": column[k - 1] for name, column in (("P", found.prec), ("R", found.recall)) for k in KS}
print(json.dumps(values))
"""
NAPKINXC = """
from napkinxc import metrics as measures
inverse = measures.Jain_et_al_inverse_propensity(train, A=0.55, B=1.5)
plain = {"P": measures.precision_at_k, "R": measures.recall_at_k, "nDCG": measures.ndcg_at_k}
weighted = {"PSP": measures.psprecision_at_k, "PSnDCG": measures.psndcg_at_k}
values = {f"{name}@{k}": compute(true, predicted, k)[-1] for name, compute in plain.items() for k in KS}
for name, compute in weighted.items():
    values |= {f"{name}@{k}": compute(true, predicted, inverse, k, normalize=True)[-1] for k in KS}
print(json.dumps(values))
"""
PYXCLIB = """
from xclib.evaluation import xc_metrics as measures
inverse = measures.compute_inv_propesity(train, A=0.55, B=1.5)
plain = {"P": measures.precision, "R": measures.recall, "nDCG": measures.ndcg}
weighted = {"PSP": measures.psprecision, "PSnDCG": measures.psndcg}
found = {name: compute(predicted, true, k=max(KS)) for name, compute in plain.items()}
found |= {name: compute(predicted, true, inverse, k=max(KS)) for name, compute in weighted.items()}
print(json.dumps({f"{name}@{k}": float(column[k - 1]) for name, column in found.items() for k in KS}))
"""
PROGRAMS = {"pecos": PECOS, "napkinxc": NAPKINXC, "pyxclib": PYXCLIB}


def make(num_queries: int, num_labels: int) -> dict[str, sp.csr_matrix]:
    """Scores of 20 labels per query, true labels of test and training queries."""
    rng = np.random.default_rng(0)
    predicted, true = np.zeros((2, num_queries, num_labels), np.float32)
    for row in range(num_queries):
        labels = rng.choice(num_labels, 20, replace=False)
        predicted[row, labels] = rng.permutation(20) + 1
        count = rng.integers(1, 8)
        true[row, rng.choice(labels if row % 2 else num_labels, count, replace=False)] = 1
    popular = 1 / np.arange(1, num_labels + 1)
    train = (rng.random((5 * num_queries, num_labels)) < popular).astype(np.float32)
    return {name: sp.csr_matrix(part) for name, part in (("predicted", predicted), ("true", true), ("train", train))}


def own(data: dict[str, sp.csr_matrix]) -> dict[str, float]:
    """The metrics by xmcbench, as fractions."""
    scores = data["predicted"].toarray()
    labels = np.tile(np.arange(scores.shape[1], dtype=np.int32), (len(scores), 1))
    predictions = rank(np.where(scores > 0, labels, -1), np.where(scores > 0, scores, -np.inf), max(KS))
    weights = inverse_propensity(sp.csr_array(data["train"]), A, B)
    evaluators = {evaluator.name: evaluator for evaluator in EVALUATORS}
    names = [f"{name}@{k}" for name in evaluators for k in KS]
    return score(find_hits(predictions, sp.csr_array(data["true"]), weights), names, evaluators)


def theirs(python: Path, program: str, data: dict[str, sp.csr_matrix]) -> dict[str, float]:
    """The metrics that a program computes in the environment of `python`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in data.items():
            sp.save_npz(Path(folder) / f"{name}.npz", matrix)
        command = [str(python), "-c", READ + program, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout)
    return values


def main() -> None:
    pythons = dict.fromkeys(PROGRAMS, (Path, "Python of an environment that has it"))
    args = options(__doc__, queries=500, labels=200, **pythons).parse_args()
    data = make(args.queries, args.labels)
    columns = {"xmcbench": own(data)}
    for name, program in PROGRAMS.items():
        if python := getattr(args, name):
            columns[name] = theirs(python, program, data)
    rows = []
    for metric, value in columns["xmcbench"].items():
        others = {name: values[metric] for name, values in columns.items() if metric in values}
        equal = all(abs(other - value) <= TOLERANCE for other in others.values())
        rows.append({"metric": metric, **others, "equal": "yes" if equal else "no"})
    report("metric_parity", rows, args)


if __name__ == "__main__":
    main()
