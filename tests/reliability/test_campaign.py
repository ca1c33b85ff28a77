"""A sample of the campaign of hostile inputs, which ``make torture`` runs as a whole."""

import os
import subprocess
import sys
from pathlib import Path

SAMPLE = 12


def test_no_input_ends_in_a_traceback_a_fault_a_hang_or_a_changed_file(tmp_path):
    """In a process of its own: each case is a fork, and what other tests leave in this one is not forked."""
    paths = [str(Path(__file__).parents[1] / "helpers"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    result = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[-1] == f"{SAMPLE} cases", result.stdout


def run_sample(folder: Path) -> None:
    """Run the cases, each on a copy of the same files, and print those that fail and the number of all."""
    from hostile import lines_of, prepare, run_case, sample, template  # type: ignore[import-not-found]

    prepare()
    good = folder / "template"
    good.mkdir()
    template(good)
    count, failed = 0, 0
    for category, case in sample(good, SAMPLE):
        (folder / str(count)).mkdir()
        outcome = run_case(case, good, folder / str(count) / "here")
        count += 1
        if outcome.problems:
            failed += 1
            print(category, case.name, outcome.code, outcome.problems, lines_of(outcome.error)[-1:])
    print(f"{failed} of {count} cases failed" if failed else f"{count} cases")


if __name__ == "__main__":
    run_sample(Path(sys.argv[1]))
