"""Tests that the help of ``fit`` and ``ssl-vision list``, from the catalogue, matches parser and classes."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import jsonargparse
import pytest
import yaml

import ssl_vision.data
import ssl_vision.encoders
import ssl_vision.methods
import ssl_vision.objectives
from ssl_vision.catalogue import BASES
from ssl_vision.cli import fit, fit_command
from ssl_vision.cli.fit_help import START, common_options, requested_help, short_help
from ssl_vision.cli.known_options import classes_of, option_names
from ssl_vision.cli.listing import KINDS, sentences
from ssl_vision.cli.suggestions import closest_option
from ssl_vision.descriptions import described
from ssl_vision.errors import InputError
from ssl_vision.evaluation.protocol import shipped
from ssl_vision.main import main
from ssl_vision.runs.files import read_yaml

SHORT_HELP = Path(fit.__file__).parent / "short_help.yaml"
LISTED = {option.name: option for options in common_options().values() for option in options}


@pytest.fixture
def parsed(monkeypatch, tmp_path):
    """Function that returns the config that ``fit`` would train with, as plain values."""

    class Stop(Exception):
        pass

    def stop(self):
        raise Stop(self.config.as_dict())

    monkeypatch.setattr(fit.FitCLI, "instantiate_classes", stop)
    monkeypatch.chdir(tmp_path)

    def parse(*args):
        with pytest.raises(Stop) as stopped:
            fit_command.run(args)
        return stopped.value.args[0]

    return parse


def test_defaults_in_help_match_parser(parsed):
    default = parsed("--name=null")
    left_out = {"config", "model.objective.pairs"}  # jsonargparse takes no null for a class in a class
    options = [f"--{name}={option.default}" for name, option in LISTED.items() if name not in left_out]
    assert parsed(*options) == default
    other = parsed("--data.views.blur=0.25", "--model.optimizer.lr=0.01", "--trainer.devices=1")
    assert all(other[key] != default[key] for key in ("data", "model", "trainer"))


@pytest.mark.parametrize(
    "command",
    [
        ["fit"],
        ["fit", "--help"],
        ["fit", "--model.help", "MoCo"],
        ["list", "objectives"],
        ["list", "metrics"],
    ],
    ids=" ".join,
)
def test_help_and_lists_do_not_import_torch(command):
    code = f"import sys; from ssl_vision.main import main; main({command}); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_short_help_fits_two_screens_and_explains_each_option(monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    lines = short_help().splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 110
    assert [line.rstrip(":") for line in lines if re.fullmatch(r"\w+:", line)] == list(common_options())
    for name, option in LISTED.items():
        assert re.fullmatch(r".{5,}\.", option.text), name
    stated = [name for texts in read_yaml(SHORT_HELP).values() for name in texts]
    assert sorted(stated) == sorted(LISTED)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, short_help().splitlines())) <= 80


def test_help_all_lists_options_of_trainer_and_run(capsys):
    with pytest.raises(SystemExit) as end:
        main(["fit", "--help", "all"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "--trainer.reload_dataloaders_every_n_epochs" in printed
    assert "--save_every_n_steps" in printed


@pytest.mark.parametrize("choice", ["data", "model", "encoder", "objective", "temperature", "gate", "ratio"])
def test_listed_class_options_match_signature(choice):
    """jsonargparse independently resolves the constructors, from the imported classes."""
    package = sys.modules[BASES[choice][0].__module__.rpartition(".")[0]]
    for name, source in classes_of(choice).items():
        cls = getattr(package, name)
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(cls, "x", fail_untyped=False)
        actions = {action.dest: action for action in parser._actions if action.dest.startswith("x.")}
        actions = {dest: action for dest, action in actions.items() if not dest.endswith("help")}
        assert {f"x.{option.name}" for option in source.options} == set(actions) - {"x.views", "x.optimizer"}
        for option in source.options:
            default = actions[f"x.{option.name}"].default
            if isinstance(default, (bool, int, float, str)) or default is None:
                stated = option.default
                if stated is None:
                    assert default is None
                else:
                    assert yaml.safe_load(stated) == default or float(stated) == default, option
            assert option.text or choice not in ("data", "model", "encoder", "objective"), (name, option)


@pytest.mark.parametrize(
    ("kind", "package", "base"),
    [
        ("objectives", ssl_vision.objectives, ssl_vision.objectives.Objective),
        ("encoders", ssl_vision.encoders, ssl_vision.encoders.Encoder),
        ("methods", ssl_vision.methods, ssl_vision.methods.Method),
        ("data", ssl_vision.data, ssl_vision.data.ImageData),
    ],
)
def test_list_has_package_classes_with_their_docstrings(kind, package, base):
    rows = sentences(kind)
    bases = {"Encoder", "ImageData", "Method", "MomentumMethod", "Objective", "TwoViews"}
    classes = {name for name in package.__all__ if inspect.isclass(getattr(package, name))}
    assert set(rows) == {name for name in classes if issubclass(getattr(package, name), base)} - bases
    for name, sentence in rows.items():
        docstring = " ".join(inspect.getdoc(getattr(package, name)).replace("`", "").split())
        assert docstring.startswith(sentence.removesuffix("."))


def test_metrics_and_protocols_are_listed():
    assert set(sentences("metrics")) == {each.name for each in described()}
    assert list(sentences("protocols")) == shipped()
    assert all(sentence.endswith(".") for kind in KINDS for sentence in sentences(kind).values())


def test_list_prints_classes_and_refuses_unknown_kind(capsys):
    assert main(["list", "methods"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("MoCo     Momentum contrast")
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "ssl-vision list objectives"
    assert main(["list", "losses"]) == 2
    assert "cannot list 'losses'; available: objectives, encoders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "first", "absent"),
    [
        (["--model.help"], "--model takes one of these classes", "--model.queue_size"),
        (["--model.help", "MoCo"], "MoCo: Momentum contrast", "SimSiam"),
        (["--model", "MoCo", "--model.help"], "MoCo: Momentum contrast", "SimCLR"),
        (["--data.help"], "--data takes one of these classes", "--data.unlabeled"),
        (["--data.help=STL10"], "STL10: 113,000 images", "CIFAR10"),
        (["--model.objective.help"], "--model.objective takes one", "--model.objective.alpha"),
        (["--model.objective.help", "MACL"], "MACL: MACL-a", "--model.hidden_dim"),
        (["--model.objective.temperature.help", "Constant"], "Constant: τ = temperature", "alpha"),
        (["--model.encoder.help", "Timm"], "Timm: Encoder from timm", "--model.encoder.width"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_class_help_covers_only_that_class(args, first, absent):
    text = requested_help(args)
    assert text.startswith(first)
    assert absent not in text
    assert len(text.splitlines()) < 165


def test_help_of_user_class_is_that_of_the_parser(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_losses.py").write_text(
        '"""Mine."""\n'
        "from ssl_vision.objectives import InfoNCE\n"
        "class Sharp(InfoNCE):\n"
        '    """Sharp contrast.\n\n    Args:\n        edge: how sharp.\n    """\n'
        "    def __init__(self, *, edge: int = 3, **options):\n"
        "        super().__init__(**options)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["fit", "--model.objective.help", "my_losses.Sharp"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "how sharp. (type: int, default: 3)" in printed
    assert "--objective.pairs" in printed


def test_misspelt_class_in_help_gets_suggestion():
    with pytest.raises(InputError, match="no class named MoC, did you mean 'MoCo'"):
        requested_help(["--model.help", "MoC"])


def test_fit_without_options_prints_commands_that_parse(parsed, capsys):
    assert main(["fit"]) == 0
    assert capsys.readouterr().out == f"{START}\n"
    commands = re.findall(r"^  ssl-vision fit (--data .*?)  ", START, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert parsed(*command.split())["data"]["class_path"].startswith("ssl_vision.data")


@pytest.mark.parametrize(
    ("option", "meant"),
    {
        "lr": "model.optimizer.lr",
        "batch_size": "data.batch_size",
        "batch-size": "data.batch_size",
        "epochs": "trainer.max_epochs",
        "backbone": "model.encoder",
        "arch": "model.encoder",
        "temperature": "model.objective.temperature",
        "model.lr": "model.optimizer.lr",
        "model.batch_size": "data.batch_size",
        "optimizer.weight_decay": "model.optimizer.weight_decay",
        "queue_size": "model.queue_size",
        "alpha": "model.objective.alpha",
        "bacth_size": "data.batch_size",
        "no_such_thing": "",
    }.items(),
)
def test_closest_option_knows_names_of_other_programs(option, meant):
    assert closest_option(option, option_names()) == meant


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lr=3", "unknown option --lr, did you mean --model.optimizer.lr?"),
        ("--model.lr=3", "unknown option --model.lr of SimCLR, did you mean --model.optimizer.lr?"),
        ("--model=BYOL", "--model: no class named BYOL; available: MoCo, MoCoV3, SimCLR, SimCo, SimMoCo"),
        (
            "--model.objective=BYOL",
            "--model.objective: no class named BYOL; ssl-vision list objectives lists them",
        ),
    ],
)
def test_unknown_option_or_class_is_reported_with_alternatives(option, message, capsys):
    assert main(["fit", option]) == 2
    assert capsys.readouterr().err == f"ssl-vision fit: {message}\n"


def test_help_of_class_that_cannot_be_imported_is_left_to_the_parser(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("ssl_vision.objectives.NoSuchClass", "no_such_module.Class", "broken.Class"):
        assert requested_help(["--model.objective.help", path]) is None


def test_the_short_help_lists_the_options_of_the_chosen_class():
    cifar = short_help(["--data", "CIFAR10", "--help"])
    assert re.search(r"--data\.views\.size 32 ", cifar)
    assert re.search(r"--data\.root data ", cifar)
    assert re.search(r"--data\.views\.size 16 ", short_help())
    assert "--data.root " not in short_help().partition("A class comes before")[0]
    timm = short_help(["--model.encoder", "Timm"])
    assert re.search(r"--model\.encoder\.name \(required\) ", timm)
    assert "--model.encoder.width" not in timm


def test_metrics_take_only_the_options_that_the_help_lists(parsed):
    options = [name for name in option_names() if name.startswith("metrics.")]
    assert {f"metrics.{name}" for name in parsed("--name=null")["metrics"]} == set(options)


def test_the_short_help_shows_the_values_of_a_config_file_and_of_options(parsed):
    file = str(Path(__file__).parents[2] / "configs" / "pretrain" / "cifar10_narrow.yaml")
    args = ["--config", file, "--trainer.max_epochs=7"]
    config = parsed(*args)
    lines = short_help([*args, "--help"]).splitlines()
    shown = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  --")}
    assert shown["--data"] == config["data"]["class_path"].rpartition(".")[2] == "CIFAR10"
    assert shown["--data.batch_size"] == str(config["data"]["init_args"]["batch_size"]) == "256"
    assert shown["--trainer.max_epochs"] == str(config["trainer"]["max_epochs"]) == "7"
    assert shown["--trainer.precision"] == config["trainer"]["precision"] == "bf16-mixed"
    assert shown["--model.optimizer.schedule"] == "cosine"
    assert shown["--metrics.k"] == str(config["metrics"]["k"])
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        short_help(["--config=nowhere.yaml", "--help"])


def test_the_short_help_shows_a_name_that_yaml_reads_as_a_date(tmp_path):
    (tmp_path / "run.yaml").write_text("name: 2024-01-01\n")
    assert "2024-01-01" in short_help([f"--config={tmp_path / 'run.yaml'}", "--help"])


def test_the_short_help_refuses_the_files_that_training_refuses(tmp_path):
    (tmp_path / "run.yaml").write_text("[" * 5000)
    with pytest.raises(InputError, match=r"run\.yaml"):
        short_help([f"--config={tmp_path / 'run.yaml'}", "--help"])


@pytest.mark.parametrize("word", ["data", "nonsense", ""])
def test_help_of_unknown_word_lists_available_help(word):
    with pytest.raises(InputError, match=rf"--help {word}: give --help, --help all, or --data\.help"):
        requested_help(["--help", word])
