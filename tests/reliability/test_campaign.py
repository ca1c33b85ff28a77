"""A sample of the campaign of hostile inputs, which ``make torture`` runs as a whole."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hostile import lines_of, prepare, run_case, sample, template

SAMPLE = 30


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The files of which each case damages a copy."""
    prepare()
    folder = tmp_path_factory.mktemp("hostile") / "template"
    folder.mkdir()
    template(folder)
    return folder


def test_no_input_ends_in_a_traceback_a_fault_a_hang_or_a_changed_file(good, tmp_path):
    failed = []
    for number, (category, case) in enumerate(sample(good, SAMPLE)):
        (tmp_path / str(number)).mkdir()
        outcome = run_case(case, good, tmp_path / str(number) / "here")
        if outcome.problems:
            failed.append((category, case.name, outcome.code, outcome.problems, lines_of(outcome.error)[-1:]))
    assert not failed
