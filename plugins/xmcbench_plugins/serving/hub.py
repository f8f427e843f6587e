"""The upload of a folder of files to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xmcbench.errors import XMCBenchError, shown


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
