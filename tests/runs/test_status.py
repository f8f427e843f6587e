"""What a trial that ended with an exception is called."""

from __future__ import annotations

import pytest

from xmcbench.evaluation import InvalidPredictions
from xmcbench.runs.worker import _status
from xmcbench.trial.record import Status


class OutOfMemoryError(RuntimeError):
    """As torch's."""


class AcceleratorError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried"),
        # Pinned memory, or the CUDA context: `cudaErrorMemoryAllocation`.
        AcceleratorError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Error in faiss::gpu::StandardGpuResourcesImpl: cudaMalloc error out of memory [2]"),
        RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_whatever_ran_out_of_memory_is_oom(problem: Exception) -> None:
    assert _status(problem) is Status.OOM


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (AcceleratorError("CUDA error: an illegal memory access was encountered"), Status.ERROR),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), Status.ERROR),
        (KeyError("out of memory"), Status.ERROR),
        (InvalidPredictions("scores are not finite"), Status.INVALID),
    ],
)
def test_what_is_no_lack_of_memory_keeps_its_name(problem: Exception, status: Status) -> None:
    assert _status(problem) is status
