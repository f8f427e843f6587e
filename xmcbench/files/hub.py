"""The Hugging Face hub: whether to look for a model there."""

from __future__ import annotations

from pathlib import Path


def local_files_only(model: str) -> bool:
    """Whether to load `model`, a folder or a hub id, without the network.

    True for a folder, and where the hub does not answer within 5 seconds: transformers itself would wait for half a
    minute. Models in the local cache of the hub are found either way.
    """
    if Path(model).is_dir():
        return True
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import get_session

    try:
        get_session().head(ENDPOINT, timeout=5)
    except Exception:  # of whichever HTTP library huggingface_hub uses
        return True
    return False
