"""Every command of README and the pages below docs/ is run, in the order of its page, on tiny data.

What cannot be run is read by the parser that would read it, for a reason that stands in a table here.
"""

import configparser
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image
from settings import TINY

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PROGRAMS = ("ssl-vision", "python", "pip", "make", "torchrun", "srun", "docker", "wandb")

LOOPS = {"objective": "MACL", "seed": "0"}
"""What the variables of a page's shell loops are here: one turn of each loop is run."""

NOT_RUN = {
    r"--data (STL10|CIFAR100)": "official data; tests/evaluation/test_transfer.py runs it",
    r"in_channels": "a data set of bands; tests/data/test_map_data.py has one",
    r"--data\.test_share": "data without a test split; tests/data/test_map_data.py runs it",
    r"--trainer\.devices": "several devices; tests/reliability has processes",
    r"compile": "compiling takes minutes on a CPU; tests/methods and tests/data compile",
    r"--model\.encoder Timm": "a large network; tests/encoders trains small ones",
    r"--format (torchvision|timm)": "a network of width 64; tests/export/test_export.py has one",
    r"--push |hf://": "the Hugging Face Hub; tests/export/test_hub.py has a stand-in",
    r"evaluate .*(--encoder|--beside) ": "other weights; tests/evaluation/test_other_networks.py has some",
    r"^ssl-vision (runs|sweep|reproduce|compare|choose)\b": "several runs; tests of these packages have them",
    r"^ssl-vision report\b": "tests/report runs it",
}
"""Commands of ssl-vision that are only parsed."""

FIT = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=0"]
FIT += ["--data.batch_size=16", "--model.optimizer.warmup_epochs=0"]


def commands(page):
    """The command lines in a page's fenced blocks that are no Python or YAML."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^([A-Z_]+=\S* )+", "", line.strip())
            line = re.sub(r"\$(\w+)", lambda name: LOOPS.get(name[1], name[0]), line)
            if line.split(" ")[0] in PROGRAMS:
                yield shlex.split(line, comments=True)


def reason(words):
    """Why a command is not run; None where it is."""
    line = shlex.join(words)
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), None)


class Parsed(BaseException):
    """Ends a command once its options are accepted."""


@pytest.fixture
def parsed(monkeypatch):
    """Reads a command of ssl-vision with its own parser, and goes no further."""
    parse = ArgumentParser.parse_args

    def parse_and_stop(self, *args, **kwargs):
        parse(self, *args, **kwargs)
        raise Parsed

    def stop(self):
        raise Parsed

    def read(words):
        with monkeypatch.context() as patch:
            patch.setattr("ssl_vision.cli.fit.RunCLI.before_instantiate_classes", stop)
            if words[0] not in ("fit", "validate"):
                patch.setattr(ArgumentParser, "parse_args", parse_and_stop)
            with pytest.raises(Parsed):
                main(words)

    return read


@pytest.fixture
def place(tmp_path, tiny_run, monkeypatch):
    """Where a reader would be: with configs, images, and the run that the page on evaluation has."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(tiny_run, tmp_path / "runs" / "cifar10")
    for number in range(40):
        part = "train" if number < 30 else "test"
        file = tmp_path / "my_images" / part / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 12), (6 * number, 255 - 6 * number, 128)).save(file)
    (tmp_path / "labelled").symlink_to("my_images")
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("extending", "data"))
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", pages, flags=re.DOTALL):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_small(words):
    """A command of ssl-vision with options behind it that make it quick."""
    if words[0] == "fit":
        data = [] if any("data/folder.yaml" in word for word in words) else ["--data=Digits"]
        begin = [] if "--ckpt_path" in words or not words[1].startswith("-") else ["--overwrite=true"]
        return [*words, *data, *FIT, *begin]
    if words[0] == "evaluate" and "--protocol" not in words:
        return [*words, "--probe.epochs=1", "--baselines=false"]
    if words[0] == "evaluate":
        return [*words, "--baselines=false"]
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_does_what_it_says(page, place, parsed, capsys):
    found = [words[1:] for words in commands(page) if words[0] == "ssl-vision"]
    for words in found:
        if reason(["ssl-vision", *words]):
            parsed(words)
        elif words[0] != "--help":
            assert main(in_small(words)) == 0, (shlex.join(words), capsys.readouterr().err)


def test_commands_for_several_processes_are_read_by_their_parsers(place, parsed):
    found = [w for page in PAGES for w in commands(page) if w[0] in ("torchrun", "srun")]
    assert len(found) == 7
    for words in found:
        command = next(word for word in words if word in ("fit", "evaluate", "embed"))
        parsed(words[words.index(command) :])


def test_every_reason_is_needed():
    lines = [shlex.join(words) for page in PAGES for words in commands(page)]
    unused = {pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in lines)}
    assert unused <= {r"^ssl-vision report\b"}


def test_the_scripts_and_their_options_are_there():
    inline = re.findall(
        r"`(python (?:benchmarks|docs|tests)/[^`]+)`",
        "".join(page.read_text() for page in PAGES).replace("\n", " "),
    )
    found = [words for page in PAGES for words in commands(page) if words[0] == "python"]
    for words in [*found, *map(shlex.split, inline)]:
        if words[1] == "-m":
            assert words[2:] == ["pytest"]
            continue
        script = (ROOT / words[1]).read_text()
        for option in (word for word in words[2:] if word.startswith("--")):
            name = option.lstrip("-").split("=")[0]
            assert option in script or re.search(rf"\b{name}\b", script), (words, option)


def test_the_extras_and_the_targets_are_there():
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
