"""Check of a continued run's images against those that it was trained on."""

from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data import ImageData
from ssl_vision.data.loading.fingerprint import changes, digest_of_files
from ssl_vision.errors import InputError
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.images_file import read_images


def check_images(data: ImageData, checkpoint: Checkpoint) -> None:
    """Refuse to continue a run if its images have changed; with ``--data.changed allow``, warn instead.

    The images are compared by the digest in the checkpoint. ``images.csv`` in the run directory tells which
    files changed; files whose size and modification time match it are not read again. Checkpoints of earlier
    versions, which have no digest, are accepted.

    Raises:
        InputError: the images have changed, or cannot be read.
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
        description = f"{now.compared} of {type(data).__name__} differ"
    elif digest_of_files(before) == checkpoint.images:
        description = changes(before, now.files)
    else:
        description = "the run's images.csv does not list the changes"
    message = f"{checkpoint.path}: the images have changed since it was written: {description}"
    if data.changed == "refuse":
        raise InputError(f"{message}; restore them, or continue with --data.changed allow")
    rank_zero_warn(f"{message}; training continues on the current images")
