"""The Hugging Face hub: whether to look for a model there, and the upload of a folder of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xmcbench.errors import XMCBenchError, shown


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


def commit_of(model: str) -> str:
    """The commit of a model of the hub that the local cache has; empty where it has none."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, "config.json")
    return Path(path).parent.name if isinstance(path, str) else ""


def check_repository(repository: str) -> None:
    """Raise XMCBenchError unless this is a name of a repository, as user/name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError:
        raise XMCBenchError(f"found the repository {shown(repository)}, expected one as user/name") from None


def upload(repository: str, files: Mapping[str, Path | bytes], message: str, private: bool) -> str:
    """Write files, by their names there, into a model repository in one commit; makes the repository if it is missing.

    Returns the repository's address. `private` holds for a repository that is made. Raises XMCBenchError without a
    token, or with the hub's reason where the upload fails.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise XMCBenchError("no token of the hub: expected the variable HF_TOKEN, or a login by `hf auth login`")
    hub = HfApi()
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    try:
        made = hub.create_repo(repository, private=private or None, exist_ok=True)
        hub.create_commit(made.repo_id, operations, commit_message=message)
    except Exception as problem:  # of whichever HTTP library huggingface_hub uses
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise XMCBenchError(f"{hub.endpoint}: {repository!r} was not uploaded: {reason}") from problem
    return str(made)
