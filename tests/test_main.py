"""Tests of the command-line entry point: commands, help, errors, warnings and quiet mode."""

import contextlib
import importlib
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
from pytorch_lightning.utilities import rank_zero_info

from ssl_vision import __version__
from ssl_vision.errors import InputError
from ssl_vision.main import COMMANDS, main


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "ssl_vision", *args], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_lists_commands_of_the_guides_and_with_all_every_command(capsys):
    assert main(["help", "--all"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)
    assert main(["--help"]) == main([]) == 0
    first_page = capsys.readouterr().out.partition("usage:")[2].partition("usage:")[0]
    assert [name for name in COMMANDS if f"\n  {name} " not in first_page] == ["maps"]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_names_a_module_that_runs_it(command):
    assert callable(importlib.import_module(command.module).run)


def test_help_and_version_do_not_import_torch():
    code = "import sys; from ssl_vision.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"ssl-vision {__version__}\n")


def test_unknown_command_prints_one_line_and_exits_2(capsys):
    assert main(["pretrain"]) == main(["fti"]) == 2
    commands = ", ".join(COMMANDS)
    assert capsys.readouterr().err == (
        f"ssl-vision pretrain: unknown command 'pretrain'; available: {commands}\n"
        "ssl-vision fti: unknown command 'fti', did you mean 'fit'?\n"
    )


@pytest.fixture
def make_fit_fail(monkeypatch):
    """Return a function that makes the fit command raise an error."""
    monkeypatch.setitem(COMMANDS, "fit", COMMANDS["fit"]._replace(module="test_main_fault"))

    def with_error(error):
        def command(args):
            assert "--debug" not in args
            raise error

        monkeypatch.setitem(sys.modules, "test_main_fault", SimpleNamespace(run=command))

    return with_error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyError("of\nmany lines"), 1, "KeyError: 'of\\nmany lines' (--debug shows where)"),
        (RuntimeError("\nfirst\nsecond"), 1, "RuntimeError: first (--debug shows where)"),
        (FloatingPointError("10 times in a row"), 1, "10 times in a row"),
        (InputError("a\nb"), 2, "a b"),
        (MemoryError("3 GB"), 1, "out of memory: reduce the batch size, or set --model.chunk_size (3 GB)"),
    ],
)
def test_error_prints_one_line(error, code, line, make_fit_fail, capsys):
    make_fit_fail(error)
    assert main(["fit"]) == code
    assert capsys.readouterr().err == f"ssl-vision fit: {line}\n"


@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize("way", ["before", "after", "environment"])
def test_debug_shows_the_traceback_of_every_error(way, code, make_fit_fail, capsys, monkeypatch):
    make_fit_fail(InputError("x") if code == 2 else RuntimeError("x"))
    if way == "environment":
        monkeypatch.setenv("SSL_VISION_DEBUG", "1")
    args = {"before": ["--debug", "fit"], "after": ["fit", "--a=b", "--debug"], "environment": ["fit"]}[way]
    assert main(args) == code
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.splitlines()[-1].startswith("ssl-vision fit: ")


@pytest.mark.parametrize("way", ["before", "after", "environment"])
def test_quiet_applies_to_command_and_its_child_processes(way, monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "fit", COMMANDS["fit"]._replace(module="test_main_talk"))
    monkeypatch.delenv("SSL_VISION_QUIET", raising=False)

    def talk(args):
        assert args == ["--a=b"]
        rank_zero_info("an aside")
        warnings.warn("a warning", stacklevel=1)
        child = "import os; print(os.environ['SSL_VISION_QUIET'])"
        print(subprocess.run([sys.executable, "-c", child], capture_output=True, check=True).stdout)
        raise InputError("wrong")

    monkeypatch.setitem(sys.modules, "test_main_talk", SimpleNamespace(run=talk))
    if way == "environment":
        monkeypatch.setenv("SSL_VISION_QUIET", "1")
    args = {"before": ["--quiet", "fit", "--a=b"], "after": ["fit", "--a=b", "--quiet"]}
    assert main(args.get(way, ["fit", "--a=b"])) == 2
    assert capsys.readouterr() == ("b'1\\n'\n", "ssl-vision fit: wrong\n")
    assert ("SSL_VISION_QUIET" in os.environ) == (way == "environment")


def test_help_of_a_command_names_its_options(capsys):
    expected = {
        "fit": "--model --data --trainer.max_epochs --name --wandb --metrics.k --ckpt_path",
        "evaluate": "--protocol --k",
    }
    for command, options in expected.items():
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
        printed = capsys.readouterr().out
        assert all(option in printed for option in options.split())


@pytest.mark.parametrize("command", ["compare", "sweep", "reproduce", "runs", "report", "evaluate"])
def test_command_help_contains_no_docstring_markup(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert "--help" in printed
    assert not any(word in printed for word in ("Raises:", "Returns:", "InputError", "``"))


@pytest.mark.parametrize(("command", "option"), [("export", "--format"), ("embed", "--layer")])
def test_command_help_works_without_required_file(command, option, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert option in capsys.readouterr().out


def test_importing_package_does_not_import_torch():
    code = "import sys, ssl_vision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_warning_prints_one_line(monkeypatch, capsys):
    def command(args):
        warnings.warn("k is large", stacklevel=1)

    monkeypatch.setitem(COMMANDS, "fit", COMMANDS["fit"]._replace(module="test_main_fault"))
    monkeypatch.setitem(sys.modules, "test_main_fault", SimpleNamespace(run=command))
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(
        warnings,
        "showwarning",
        lambda message, category, *place: sys.stderr.write(
            warnings.formatwarning(message, category, *place[:2])
        ),
    )
    assert main(["fit"]) == 0
    assert capsys.readouterr().err == "warning: k is large\n"
