"""Addresses of encoders on the Hugging Face Hub, and the download and upload of their files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ssl_vision._version import __version__
from ssl_vision.errors import InputError

SCHEME = "hf://"

WEIGHTS = "model.safetensors"
"""Name of the weights in a repository, which timm and other libraries also use."""

_NAME = re.compile(r"(?!.*(?:--|\.\.))\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
"""Names of repositories that the Hub admits."""

_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"


def is_address(path: str | Path) -> bool:
    """Return True for the address of a repository, ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``.

    Example:
        >>> is_address("hf://somebody/encoder"), is_address("runs/my_run")
        (True, False)
    """
    return str(path).startswith(SCHEME)


def split_address(address: str) -> tuple[str, str | None]:
    """Split an address into the name of the repository and the revision, None for the default branch.

    Raises:
        InputError: the address has another form.

    Example:
        >>> split_address("hf://somebody/encoder@v1.0")
        ('somebody/encoder', 'v1.0')
    """
    name, marked, revision = address.removeprefix(SCHEME).partition("@")
    if marked and {"", ".", ".."} & set(revision.split("/")):  # the revision names a file in the cache
        raise InputError(f"{address}: expected a branch, a tag or a commit after @")
    if not _NAME.fullmatch(name):
        raise InputError(f"{address}: expected {SCHEME}OWNER/NAME or {SCHEME}OWNER/NAME@REVISION")
    return name, revision or None


@contextmanager
def local_file(path: str | Path) -> Iterator[Path]:
    """Provide the local path of a file or run directory, or of weights on the Hub, which are downloaded.

    Weights that the local cache of huggingface_hub has are not downloaded again. ``HF_HOME``,
    ``HF_HUB_OFFLINE``, ``HF_TOKEN`` and its other variables are respected. Errors about a downloaded file
    name its address instead of its path in the cache.

    Args:
        path: path, or address ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``.

    Raises:
        InputError: the address is not valid, the repository, revision or file does not exist, or the Hub
            cannot be reached and the file is not in the cache.

    Example:
        >>> with local_file("runs/my_run") as path:
        ...     path.name
        'my_run'
    """
    if not is_address(path):
        yield Path(path)
        return
    from huggingface_hub import hf_hub_download

    name, revision = split_address(str(path))
    try:
        downloaded = hf_hub_download(
            name, WEIGHTS, revision=revision, library_name="ssl_vision", library_version=__version__
        )
    except Exception as error:  # the classes of network errors depend on the version of huggingface_hub
        raise InputError(f"{path}: {_download_problem(error)}") from error
    try:
        yield Path(downloaded)
    except InputError as error:
        raise InputError(str(error).replace(downloaded, str(path))) from error


def _download_problem(error: Exception) -> str:
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return f"access is restricted: request it on the page of the repository, then {_LOG_IN}"
        case errors.RepositoryNotFoundError():
            return f"no such repository, or a private one: check the name, or {_LOG_IN}"
        case errors.RevisionNotFoundError():
            return "no such revision: give a branch, a tag or a commit after @"
        case errors.LocalEntryNotFoundError():
            return (
                "not in the local cache, and the Hugging Face Hub cannot be reached: check the network, "
                "and unset HF_HUB_OFFLINE if it is set"
            )
        case errors.EntryNotFoundError():
            return f"has no {WEIGHTS}, and no other file is read"
    return f"cannot be downloaded ({_first_line(error)})"


def check_upload(name: str) -> None:
    """Check that an upload can be attempted, before anything is computed for it.

    Args:
        name: repository, ``OWNER/NAME``.

    Raises:
        InputError: the name is not valid, there is no token, or the Hub is disabled.
    """
    from huggingface_hub import constants, get_token

    if not _NAME.fullmatch(name):
        raise InputError(f"--push {name}: expected OWNER/NAME, where OWNER is a user or an organization")
    if constants.HF_HUB_OFFLINE:
        raise InputError("--push needs the Hugging Face Hub: unset HF_HUB_OFFLINE")
    if get_token() is None:
        raise InputError(f"--push needs a token of the Hugging Face Hub: {_LOG_IN}")


def upload(folder: Path, name: str, *, private: bool | None, message: str) -> str:
    """Upload the files of a folder as one commit to a repository, which is created if necessary.

    Args:
        folder: folder of the files. Other files of the repository stay.
        name: repository, ``OWNER/NAME``.
        private: visibility of a new repository; None for the default of the owner.
        message: subject of the commit.

    Returns:
        URL of the repository.

    Raises:
        InputError: the Hub cannot be reached or refuses the upload, or the repository is to be private and
            already exists as a public one.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi(library_name="ssl_vision", library_version=__version__)
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.model_info(name).private:
            raise InputError(
                f"--push {name}: exists and is public, so nothing was uploaded: "
                "change its visibility in its settings, or remove --private"
            )
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except InputError:
        raise
    except Exception as error:  # the classes of network errors depend on the version of huggingface_hub
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        problem = f"the upload failed ({_first_line(error)}): check the network and run the command again"
        if status is None and isinstance(error, ValueError):
            problem = f"refused ({' '.join(str(error).split())}): check --license"
        if status == 401:
            problem = f"the Hugging Face Hub does not accept the token: {_LOG_IN}"
        elif status in (403, 404):
            problem = (
                "the token may not write to this repository: OWNER must be your user name or an organization "
                "of yours, and the token needs write permission"
            )
        raise InputError(f"--push {name}: {problem}") from error
    return str(address)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
