"""Arguments of ``ssl-vision evaluate`` for sweeps and reproductions."""

from collections.abc import Sequence
from pathlib import Path

from ssl_vision.cli.import_paths import names_in_command


def evaluate_arguments(
    run: Path, protocols: Sequence[str], *, fit: Sequence[str], baselines: bool = False
) -> list[str]:
    """Return arguments of ``ssl-vision`` that evaluate a run without cached features.

    Args:
        run: the run directory.
        protocols: names or paths of protocols.
        fit: command that trained the run; classes that it names may be imported.
        baselines: evaluate the untrained network and raw pixels, too.
    """
    named = dict.fromkeys(names_in_command(fit))
    allowed = [f"--allow_class={name}" for name in named if not name.startswith("ssl_vision.")]
    chosen = [f"--protocol={protocol}" for protocol in protocols]
    return ["evaluate", str(run), *chosen, f"--baselines={str(baselines).lower()}", "--cache=false", *allowed]
