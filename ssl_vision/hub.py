"""Addresses of encoders on the Hugging Face Hub, and the download and upload of their files."""

from pathlib import Path

from ssl_vision.errors import InputError

SCHEME = "hf://"

WEIGHTS = "model.safetensors"
"""Name of the weights in a repository, which timm and other libraries also use."""


def is_address(path: str | Path) -> bool:
    """Return True for the address of a repository, ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``.

    Example:
        >>> is_address("hf://somebody/encoder"), is_address("runs/my_run")
        (True, False)
    """
    return str(path).startswith(SCHEME)


def local_file(path: str | Path) -> Path:
    """Return the local path of a file or run directory, or of weights on the Hub, which are downloaded.

    Weights that the local cache of huggingface_hub has are not downloaded again. ``HF_HOME``,
    ``HF_HUB_OFFLINE``, ``HF_TOKEN`` and its other variables are respected.

    Args:
        path: path, or address ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``.

    Raises:
        InputError: the address is not valid, the repository, revision or file does not exist, or the Hub
            cannot be reached and the file is not in the cache.

    Example:
        >>> local_file("runs/my_run").name
        'my_run'
    """
    if not is_address(path):
        return Path(path).expanduser()
    from huggingface_hub import hf_hub_download

    name, _, revision = str(path).removeprefix(SCHEME).partition("@")
    try:
        return Path(hf_hub_download(name, WEIGHTS, revision=revision or None))
    except Exception as error:  # the classes of network errors depend on the version of huggingface_hub
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error


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
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.model_info(name).private:
            raise ValueError(
                "exists and is public, so nothing was uploaded: "
                "change its visibility in its settings, or remove --private"
            )
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # the classes of network errors depend on the version of huggingface_hub
        raise InputError(f"--push {name}: {' '.join(str(error).split())}") from error
    return str(address)
