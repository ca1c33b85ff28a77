"""Test of a sample of the hostile inputs in ``hostile.py``; ``make torture`` runs all of them."""

import os
import subprocess
import sys
from pathlib import Path

SAMPLE = 12


def test_sample_of_hostile_inputs_has_no_failing_case(tmp_path):
    """Cases are forked from a separate process and so do not inherit what other tests left in this one."""
    paths = [str(Path(__file__).parents[1] / "helpers"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    result = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[-1] == f"{SAMPLE} cases", result.stdout


def run_sample(folder: Path) -> None:
    """Run each case on a copy of the same files; print the cases that fail and the total number."""
    from hostile import lines_of, prepare, run_case, sample, template  # type: ignore[import-not-found]

    prepare()
    template_folder = folder / "template"
    template_folder.mkdir()
    template(template_folder)
    count, failed = 0, 0
    for category, case in sample(template_folder, SAMPLE):
        (folder / str(count)).mkdir()
        outcome = run_case(case, template_folder, folder / str(count) / "here")
        count += 1
        if outcome.problems:
            failed += 1
            print(category, case.name, outcome.code, outcome.problems, lines_of(outcome.error)[-1:])
    print(f"{failed} of {count} cases failed" if failed else f"{count} cases")


if __name__ == "__main__":
    run_sample(Path(sys.argv[1]))
