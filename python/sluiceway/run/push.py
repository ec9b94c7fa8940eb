"""Uploads an exported model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from sluiceway.errors import InvalidArgument, IoError, first_line


def check_account(repository: str) -> None:
    """Check name and login, before anything is exported.

    Raises
    ------
    sluiceway.errors.InvalidArgument
        The name cannot be one of a repository, or nobody is logged in.
    sluiceway.errors.IoError
        The hub does not answer.
    """
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except errors.HFValidationError as error:
        raise InvalidArgument(
            f"--push: {repository} cannot be a repository: {first_line(error)}"
        ) from None
    try:
        HfApi().whoami()
    except errors.LocalTokenNotFoundError:
        raise InvalidArgument(
            "--push: nobody is logged in on this machine; run hf auth login, or set HF_TOKEN"
        ) from None
    except Exception as error:  # Those of the HTTP library, which huggingface_hub passes on.
        raise _refused(repository, error) from None


def push_folder(folder: Path, repository: str) -> str:
    """Upload a folder to a repository, which is made private if it is new; return its address.

    Raises
    ------
    sluiceway.errors.IoError
        The hub refused it or does not answer; the folder stays.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Upload a fine-tuned model"
        )
    except Exception as error:  # See above.
        raise _refused(repository, error, f"; the model is in {folder}") from None
    return str(made)


def _refused(repository: str, error: Exception, more: str = "") -> IoError:
    return IoError(f"--push: {repository} could not be written, {first_line(error)}{more}")
