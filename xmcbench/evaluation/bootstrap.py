"""How uncertain metrics are: the bootstrap over test queries, paired between trials.

N test queries, B resamples, M metrics, C different columns of terms. A resample draws N queries with replacement, and
every metric is recomputed from the terms of the queries drawn. Which queries are drawn depends on N alone. The
replicates of two trials on one test split therefore belong together pair by pair, and the spread of their differences
is that of the paired bootstrap, whenever and wherever the trials were scored. For a metric that is a mean over labels,
labels are drawn in the same way.

A resample is made in two parts, so that a million queries take seconds:

1. How often a query is drawn first is a Poisson number with a mean slightly below 1, taken from 16 random bits (the
   probabilities are rounded to multiples of 2^-16). Given their total, such draws are uniform and independent, as the
   bootstrap asks. Blocks of queries have random streams of their own, and threads share the blocks.
2. The draws that are missing from N are made one by one. The mean in part 1 is so low that a total above N is
   practically impossible; for small N it is 0, and all draws are made one by one.

A change to these rules raises `RESAMPLING_VERSION`: replicates of different versions are not paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import exp, factorial, sqrt

import numpy as np
import scipy

from xmcbench.data.pairs import num_threads
from xmcbench.evaluation.metrics import MetricTerms

RESAMPLES = 1000
LEVEL = 0.95
_BLOCK = 1024  # queries of one random stream
_BLOCKS_PER_TASK = 16
_RESAMPLES_AT_ONCE = 100
_MARGIN = 5.0  # standard deviations between the expected total of part 1 and N


def resample(terms: Mapping[str, MetricTerms]) -> dict[str, np.ndarray]:
    """The replicates of each metric, float32 [B] each. `terms` are over the same N queries, or the same L labels."""
    by_size: dict[int, dict[str, MetricTerms]] = defaultdict(dict)
    for name, ratio in terms.items():
        by_size[len(ratio.numerator)][name] = ratio
    return {
        name: values
        for size, terms_of_size in by_size.items()
        for name, values in _resample(terms_of_size, size).items()
    }


def _resample(terms: Mapping[str, MetricTerms], size: int) -> dict[str, np.ndarray]:
    """The replicates of metrics over as many terms. Many share terms, and all constants share column 0, which is 1."""
    columns, sums = [np.ones(size)], [float(size)]  # columns with different sums need no comparison

    def place(column_N: np.ndarray) -> tuple[int, float]:
        """The number of the column that gives `column_N`, and the factor by which it does."""
        if bool((column_N == column_N[0]).all()):
            return 0, float(column_N[0])
        column_sum = float(column_N.sum())
        for number, known in enumerate(columns):
            if sums[number] == column_sum and np.array_equal(known, column_N):
                return number, 1.0
        columns.append(column_N)
        sums.append(column_sum)
        return len(columns) - 1, 1.0

    places = {name: (place(ratio.numerator), place(ratio.denominator)) for name, ratio in terms.items()}
    sums_BC = resampled_sums(np.column_stack(columns))
    replicates = {}
    for name, both in places.items():
        above_B, below_B = (sums_BC[:, column] * scale for column, scale in both)
        ratios_B = np.divide(above_B, below_B, out=np.zeros(RESAMPLES), where=below_B > 0)
        replicates[name] = ratios_B.astype(np.float32)
    return replicates


def resampled_sums(terms_NC: np.ndarray) -> np.ndarray:
    """The sums of the columns of `terms_NC` over the queries of every resample, float64 [B, C]. Column 0 must be 1."""
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_limits

    num_queries = len(terms_NC)
    mean = max(0.0, 1.0 - _MARGIN / sqrt(num_queries))
    cumulated = accumulate(exp(-mean) * mean**n / factorial(n) for n in range(20))
    # A random number of 16 bits gives as many draws as there are thresholds below it.
    thresholds = [threshold for share in cumulated if (threshold := round(share * 65536) - 1) < 65535]

    def add_missing(first: int) -> None:
        """Part 2 of `_RESAMPLES_AT_ONCE` resamples, as a sparse product that copies no terms."""
        rows = slice(first, first + _RESAMPLES_AT_ONCE)
        drawn = [
            np.random.default_rng([RESAMPLES, num_queries, number]).integers(num_queries, size=missing)
            for number, missing in enumerate(missing_B[rows], start=first)
        ]
        ends = np.cumsum([0, *map(len, drawn)])
        counts_BN = scipy.sparse.csr_array((np.ones(ends[-1]), np.concatenate(drawn), ends), (len(drawn), num_queries))
        sums_BC[rows] += counts_BN @ terms_NC

    sums_BC = np.zeros((RESAMPLES, terms_NC.shape[1]))
    # The threads share out the blocks: those of the matrix product itself would only get in their way.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(num_threads()) as threads:
        if mean > 0:
            tasks = range(0, num_queries, _BLOCK * _BLOCKS_PER_TASK)
            for sums in threads.map(partial(_poisson_sums, terms_NC, thresholds), tasks):
                sums_BC += sums
        missing_B = np.maximum(num_queries - sums_BC[:, 0], 0).astype(np.int64)
        list(threads.map(add_missing, range(0, RESAMPLES, _RESAMPLES_AT_ONCE)))
    return sums_BC


def _poisson_sums(terms_NC: np.ndarray, thresholds: Sequence[int], first: int) -> np.ndarray:
    """Part 1, from query `first` on: the sums over the queries of `_BLOCKS_PER_TASK` blocks, float64 [B, C]."""
    sums_BC = np.zeros((RESAMPLES, terms_NC.shape[1]))
    # Arrays that fit a core's cache and are reused: numpy would spend more on allocating them than on the work.
    flags, counts = np.empty((2, _RESAMPLES_AT_ONCE * _BLOCK), np.uint8)
    weights = np.empty((_RESAMPLES_AT_ONCE, _BLOCK))
    for start in range(first, min(first + _BLOCK * _BLOCKS_PER_TASK, len(terms_NC)), _BLOCK):
        terms = terms_NC[start : start + _BLOCK]
        bits = np.random.Generator(np.random.SFC64([RESAMPLES, start // _BLOCK]))
        for row in range(0, RESAMPLES, _RESAMPLES_AT_ONCE):
            words = bits.integers(0, 1 << 64, len(counts) // 4, dtype=np.uint64)
            random = words.astype("<u8", copy=False).view("<u2")
            np.greater(random, thresholds[0], out=counts.view(bool))
            for threshold in thresholds[1:]:
                np.greater(random, threshold, out=flags.view(bool))
                np.add(counts, flags, out=counts)
            weights[:] = counts.reshape(weights.shape)
            sums_BC[row : row + _RESAMPLES_AT_ONCE] += weights[:, : len(terms)] @ terms
    return sums_BC


def interval(replicates: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of replicates [B]."""
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def intervals(resampled: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each metric from its replicates [B]."""
    return {name: interval(replicates) for name, replicates in resampled.items()}


def compact_resamples(values_TB: np.ndarray, size: int) -> np.ndarray:
    """float32 [T, size]: vectors that have, each with its negative beside it, the covariances of `values_TB`.

    All that `significance.py` reads of the metrics of T trials on B resamples is the standard deviation (`ddof=1`) of
    sums and differences of them, so that these stand for them: the triangle of a QR decomposition. T <= `size`. Numbers
    have 16 significant bits, so that a compressed file is a quarter smaller.
    """
    centred_TB = values_TB - values_TB.mean(axis=1, keepdims=True, dtype=np.float64)
    triangle = np.asarray(np.linalg.qr(centred_TB.T, mode="r")).T  # [T, min(T, B)], with their inner products
    made = np.zeros((len(values_TB), size), np.float32)
    made[:, : triangle.shape[1]] = triangle * sqrt((2 * size - 1) / (2 * (values_TB.shape[1] - 1)))
    bits = made.view(np.uint32)
    bits += 0x80  # rounds; a carry goes into the exponent, as it should
    bits &= 0xFFFFFF00
    return made
