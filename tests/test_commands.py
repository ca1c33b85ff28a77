"""Tests that run every command of README.md and docs/*.md on tiny data, in the order of its page.

A command that cannot be run here is only parsed; ``NOT_RUN`` gives the reason.
"""

import configparser
import re
import shlex
import shutil
from pathlib import Path

import pytest
from page_commands import commands
from PIL import Image
from settings import TINY

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.main import main

ROOT = Path(__file__).parent.parent
FIRST_PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
PAGES = [*FIRST_PAGES, *sorted(set(ROOT.glob("docs/*.md")) - set(FIRST_PAGES))]

WITH_OWN_TEST = [ROOT / "docs" / "start_from_weights.md"]
"""Pages whose commands another test runs: test_start_from_weights.py."""

NOT_RUN = {
    r"--data (STL10|CIFAR100)": "official data; tests/evaluation/test_transfer.py runs it",
    r"in_channels": "a data set of bands; tests/data/test_map_style.py has one",
    r"--data\.test_share": "data without a test split; tests/data/test_map_style.py runs it",
    r"--trainer\.devices": "several devices; tests/reliability has processes",
    r"compile|cifar10_speedrun": "compiling takes minutes on a CPU; tests/methods and tests/data compile",
    r"cifar10_gpu": "a CUDA device; tests/device has a fake one",
    r"--model\.encoder Timm": "a large network; tests/encoders trains small ones",
    r"--format (torchvision|timm|onnx)": "a network of width 64; tests/export/test_export.py has one",
    r"--push |hf://": "the Hugging Face Hub; tests/export/test_hub.py has a stand-in",
    r"(evaluate|embed|export) .*(--encoder|--other) ": "other weights; tests of these commands have some",
    r"^ssl-vision (runs|sweep|reproduce|compare|choose)\b": "several runs; tests of these packages have them",
    r"^ssl-vision report\b": "tests/experiments/report runs it",
}
"""Commands of ssl-vision that are only parsed."""

FIT = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=0"]
FIT += ["--data.batch_size=16", "--model.optimizer.warmup_epochs=0"]


def reason(words):
    """Reason for not running a command, or None if it is run."""
    line = shlex.join(words)
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), None)


class Parsed(BaseException):
    """Raised to stop a command once its options are accepted."""


@pytest.fixture
def parse_only(monkeypatch):
    """Return a function that parses an ssl-vision command with its own parser, without running it."""
    parse = ArgumentParser.parse_args

    def parse_and_stop(self, *args, **kwargs):
        parse(self, *args, **kwargs)
        raise Parsed

    def stop(self):
        raise Parsed

    def read(words):
        with monkeypatch.context() as patch:
            patch.setattr("ssl_vision.cli.fit.FitCLI.instantiate_classes", stop)
            patch.setattr(
                "ssl_vision.cli.run_options.stated_normalisation", lambda *args: None
            )  # absent here
            if words[0] != "fit":
                patch.setattr(ArgumentParser, "parse_args", parse_and_stop)
            with pytest.raises(Parsed):
                main(words)

    return read


@pytest.fixture
def working_directory(tmp_path, tiny_run, monkeypatch):
    """Working directory with the configs, protocols, images, modules and the run that the pages assume."""
    for name in ("configs", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(tiny_run, tmp_path / "runs" / "cifar10")
    for number in range(40):
        split = "train" if number < 30 else "test"
        file = tmp_path / "my_images" / split / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 12), (6 * number, 255 - 6 * number, 128)).save(file)
    (tmp_path / "labelled").symlink_to("my_images")
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("extending", "data"))
    for name, text in re.findall(
        r"```(?:python|yaml)\n# (\w+\.(?:py|yaml))\n(.*?)```", pages, flags=re.DOTALL
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(words):
    """An ssl-vision command with appended options that make it fast."""
    if words[0] == "fit":
        data = [] if any("data/folder" in word for word in words) else ["--data=Digits"]
        overwrite = [] if "--ckpt_path" in words or not words[1].startswith("-") else ["--overwrite=true"]
        return [*words, *data, *FIT, *overwrite]
    if words[0] == "evaluate" and "--protocol" not in words:
        return [*words, "--probe.epochs=1", "--baselines=false"]
    if words[0] == "evaluate":
        return [*words, "--baselines=false"]
    return words


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in FIRST_PAGES else pytest.mark.docs, id=page.stem)
        for page in PAGES
        if page not in WITH_OWN_TEST
    ],
)
def test_every_ssl_vision_command_of_page_runs_or_parses(page, working_directory, parse_only, capsys):
    page_commands = [words[1:] for words in commands(page) if words[0] == "ssl-vision"]
    for words in page_commands:
        if reason(["ssl-vision", *words]):
            parse_only(words)
        elif words[0] != "--help":
            assert main(shortened(words)) == 0, (shlex.join(words), capsys.readouterr().err)


def test_multi_process_commands_are_parsed(working_directory, parse_only):
    launches = [w for page in PAGES for w in commands(page) if w[0] in ("torchrun", "srun")]
    assert len(launches) == 7
    for words in launches:
        command = next(word for word in words if word in ("fit", "evaluate", "embed"))
        parse_only(words[words.index(command) :])


def test_every_reason_for_not_running_matches_a_command():
    lines = [shlex.join(words) for page in PAGES for words in commands(page)]
    unused = {pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in lines)}
    assert unused == set()


def test_python_commands_use_existing_scripts_and_options():
    inline = re.findall(
        r"`(python (?:benchmarks|docs|tests)/[^`]+)`",
        "".join(page.read_text() for page in PAGES).replace("\n", " "),
    )
    in_blocks = [words for page in PAGES for words in commands(page) if words[0] == "python"]
    for words in [*in_blocks, *map(shlex.split, inline)]:
        if words[1] == "-m":
            assert words[2:] == ["pytest"]
            continue
        script = (ROOT / words[1]).read_text()
        for option in (word for word in words[2:] if word.startswith("--")):
            name = option.lstrip("-").split("=")[0]
            assert option in script or re.search(rf"\b{name}\b", script), (words, option)


def test_make_and_pip_commands_use_existing_targets_and_extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        for words in commands(page):
            if words[0] == "make" and len(words) == 2:
                assert words[1] in targets
            if words[0] == "pip":
                (names,) = re.findall(r"\.\[([\w,]+)\]", shlex.join(words))
                assert set(names.split(",")) <= set(setup["options.extras_require"])
