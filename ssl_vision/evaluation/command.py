"""``ssl-vision evaluate``: accuracies and representation metrics under named protocols."""

from collections.abc import Sequence
from typing import Any

from ssl_vision.cli.fit_help import class_help
from ssl_vision.errors import InputError
from ssl_vision.evaluation.encoder_request import EncoderRequest
from ssl_vision.evaluation.options import evaluation_parser
from ssl_vision.evaluation.processes import first_before_others, sharing
from ssl_vision.evaluation.results import Stored
from ssl_vision.evaluation.run_request import RunRequest
from ssl_vision.evaluation.splits import Splits
from ssl_vision.evaluation.subject import run_protocols
from ssl_vision.pretrained.encoder_options import names_encoder


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Print the help of the command, or evaluate and print the tables.

    Returns:
        The arguments for the report of the run; None if there is no run, or if an earlier epoch, other data
        or differently prepared images were measured.

    Raises:
        InputError: as `evaluated`, or the results cannot be written, which does not prevent their output.
    """
    if (text := class_help(args)) is not None:
        print(text)
        return None
    if not names_encoder(args) and (not args or args[0].startswith("-")):
        if not {"-h", "--help"} & set(args):
            raise InputError(
                "give the checkpoint, or the run directory, first: ssl-vision evaluate CHECKPOINT; "
                "an encoder without a run is named by --encoder"
            )
        evaluation_parser(data_required=False).parse_args(list(args))
        return None
    with sharing():
        stored = evaluated(args)
    print(stored.result)
    if stored.error is not None:
        raise stored.error
    if stored.result.output is not None:
        print(f"written to {stored.result.output}")
    return stored.page


def evaluated(args: Sequence[str]) -> Stored:
    """Evaluate a run, a checkpoint or an encoder, and store the rows.

    Args:
        args: arguments of the command.

    Raises:
        InputError: the checkpoint, the encoder, an option or ``evaluation.json`` is invalid, the data are
            missing or have no labels, or no measurement of the trained network was possible.
    """
    request = EncoderRequest(args) if names_encoder(args) else RunRequest(args)
    with first_before_others():
        splits = Splits.labelled(request.data, place=request.place())
    subject = request.subject(splits).checked()
    return request.stored(subject, run_protocols(subject, request.protocols))
