"""Whether the images of a run that continues are those that it was trained on."""

from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data import ImageData
from ssl_vision.data.loading.fingerprint import changes, digest_of_files
from ssl_vision.errors import InputError
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.images_file import read_images


def check_images(data: ImageData, checkpoint: Checkpoint) -> None:
    """Refuses to continue on changed images; with ``--data.changed allow``, warns.

    The digest in the checkpoint decides. ``images.csv`` in its run directory says which files changed, and
    files whose size and modification time are as listed there are not read. A checkpoint without a digest,
    from an earlier version, is accepted.

    Args:
        data: the images as they are now.
        checkpoint: that the run is to continue from.

    Raises:
        InputError: the images changed, or cannot be read.
    """
    if checkpoint.images is None:
        return
    if data.download:
        data.prepare_data()
    before = read_images(RunFolder(checkpoint.path.parent.parent).images_file)
    now = data.fingerprint(before)
    if now.digest == checkpoint.images:
        return
    if not now.files:
        what = f"pixels or labels of {type(data).__name__} differ"
    elif digest_of_files(before) == checkpoint.images:
        what = changes(before, now.files)
    else:
        what = "the run's images.csv does not say which"
    message = f"{checkpoint.path}: the images have changed since it was written: {what}"
    if data.changed == "refuse":
        raise InputError(f"{message}; restore them, or go on with --data.changed allow")
    rank_zero_warn(f"{message}; training goes on with the images as they are now")
