"""Trains one linear support vector machine per label over sparse features, in parallel processes.

Runs in the Python of xmcbench, as a program: liblinear draws from one generator per process, so that threads would
disturb one another's order of rows. Legend: N training queries, V terms, L labels.
"""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from xmcbench_features import fit_features
from xmcbench_task import Task

BLOCK = 256  # labels that a process trains at a time
GROUP = 4  # blocks of a process between two looks at the budget
PRUNED = 0.01  # smaller weights are left out (Babbar and Schoelkopf, DiSMEC, WSDM 2017)

shared = {}
task = Task()
settings = task.settings


def fit():
    started = time.monotonic()
    rows_NV = sp.csr_matrix(
        fit_features(task.texts("train"), task.model, settings["ngrams"], settings.get("characters"))
    )
    targets_NL = sp.csr_matrix(task.matrix() - task.matrix().multiply(task.matrix("ignore")))
    targets_NL.eliminate_zeros()
    true_LN = sp.csr_matrix(targets_NL.T)
    counts_L = np.diff(true_LN.indptr)
    order = np.argsort(-counts_L, kind="stable")[: int((counts_L > 0).sum())]  # frequent labels first
    blocks = [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]
    workers = max(1, min(len(os.sched_getaffinity(0)), len(blocks)))
    at_once = GROUP * workers
    weights, labels, biases, operations = [], [], [], 0
    shared.update(rows_NV=rows_NV, true_LN=true_LN)  # forked processes have them
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for start in range(0, len(blocks), at_once):
            group = blocks[start : start + at_once]
            trained = pool.map(train_block, group)
            for block, (block_weights, block_biases, block_operations) in zip(group, trained, strict=True):
                labels.append(block)
                weights.append(block_weights)
                biases.append(block_biases)
                operations += block_operations
            task.progress(min(1.0, (start + at_once) / len(blocks)), labels=sum(map(len, labels)))
            if spent(operations, time.monotonic() - started):
                break
    save(weights, np.concatenate(labels) if labels else order, biases, rows_NV.shape[1])
    task.spend(solver_flops=operations, num_parameters=sum(block.nnz + block.shape[0] for block in weights))


def spent(operations, seconds):
    """Whether the budget is used up: of operations, or of seconds, of which all processes together take more."""
    times = os.times()
    used = {"flops": operations, "device_seconds": max(seconds, times.user + times.system + times.children_user)}
    return any(used[name] >= limit for name, limit in task.budget.items() if name in used)


def train_block(block):
    """What `train` returns for the labels of a block, in a process of the pool."""
    return train(shared["rows_NV"], shared["true_LN"][block], settings)


def train(rows_NV, true_LN, own):
    """The weights [labels, V], the intercepts, and the operations of some labels. All rows are in every problem, or the
    true ones and those that are nearest to their mean."""
    weights, biases, operations, total = [], [], 0, rows_NV.shape[0]
    fewer = own["negatives"] and own["negatives"] < total
    for label in range(true_LN.shape[0]):
        true = true_LN.indices[true_LN.indptr[label] : true_LN.indptr[label + 1]]
        chosen = near(rows_NV, true, own["negatives"]) if fewer else np.arange(total)
        operations += 2 * rows_NV.nnz if fewer else 0  # the products of all rows with the mean of the true ones
        is_true = np.isin(chosen, true)
        if is_true.all():  # every query has the label
            weights.append(sp.csr_matrix((1, rows_NV.shape[1]), dtype=np.float32))
            biases.append(1.0)
            continue
        shown_NV = rows_NV[chosen] if fewer else rows_NV
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            learnt = LinearSVC(C=own["cost"], dual=True, random_state=0).fit(shown_NV, is_true)
        operations += 4 * int(learnt.n_iter_) * (shown_NV.nnz + shown_NV.shape[0])  # at most: see `solver_flops`
        row = learnt.coef_.astype(np.float32)
        row[np.abs(row) < PRUNED] = 0
        weights.append(sp.csr_matrix(row))
        biases.append(float(learnt.intercept_[0]))
    return sp.vstack(weights, format="csr"), biases, operations


def near(rows_NV, true, most):
    """The rows of the true queries, and up to `most` others: those with the largest product with their mean."""
    products = np.asarray(rows_NV @ rows_NV[true].mean(axis=0).T).ravel()
    products[true] = -1.0
    others = np.argpartition(-products, min(most, len(products) - 1))[:most]
    return np.sort(np.concatenate([true, np.setdiff1d(others, true)]))


def save(weights, labels, biases, num_terms):
    """Write the weights [V, trained labels], their label ids and intercepts."""
    stacked = sp.vstack(weights, format="csr") if weights else sp.csr_matrix((0, num_terms), dtype=np.float32)
    order = np.argsort(labels)
    sp.save_npz(task.model / "weights.npz", sp.csr_array(stacked[order].T.tocsr()))
    np.save(task.model / "labels.npy", labels[order].astype(np.int32))
    np.save(task.model / "intercepts.npy", np.array([one for block in biases for one in block], np.float32)[order])


if __name__ == "__main__":
    fit()
