"""What docker/ builds and runs exists, and is what the command line takes. No engine is needed."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ssl_vision.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
FILE = DOCKER / "Dockerfile"
PAGE = (DOCKER / "README.md").read_text()
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]
WORKPLACE = "/workspace"

both = pytest.mark.parametrize("kind", ["gpu", "cpu"])


def instructions(kind):
    """(NAME, rest) of each instruction for a device, comments left out and continued lines joined."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    taken = True
    for name, rest in (line.split(maxsplit=1) for line in joined.splitlines() if line):
        if name == "FROM":
            taken = rest in (f"${{BASE}} AS {kind}", "${DEVICE}")
        if taken:
            yield name, rest


def the(name, kind):
    """What the only instruction of a name says."""
    (rest,) = [rest for found, rest in instructions(kind) if found == name]
    return rest


def arguments(kind):
    """Defaults of the build arguments."""
    return dict(rest.split("=", 1) for name, rest in instructions(kind) if name == "ARG" and "=" in rest)


def ignored():
    """Patterns of .dockerignore: those that leave something out, and those that let it in again."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    return [line for line in lines if line[0] != "!"], [line[1:] for line in lines if line[0] == "!"]


@pytest.mark.skipif(not shutil.which("hadolint", path=Path(sys.executable).parent), reason="no hadolint")
def test_the_linter_finds_nothing():
    linter = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([linter, FILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@both
def test_every_variable_is_declared_before_it_is_used(kind):
    first, stage = set(), None  # an ARG before the first FROM is visible only in FROM lines
    for name, rest in instructions(kind):
        used = set(re.findall(r"\$\{?(\w+)", rest))
        assert used <= (first if stage is None or name == "FROM" else stage), (name, rest)
        if name == "FROM" and rest != "${DEVICE}":  # that stage has the arguments of the device's
            stage = set()
        if name == "ARG":
            (first if stage is None else stage).add(rest.split("=")[0])


@both
def test_what_is_copied_exists_and_reaches_the_build(kind):
    out, let_in = ignored()
    for name, rest in instructions(kind):
        for source in shlex.split(rest)[:-1] if name == "COPY" else ():
            assert (ROOT / source).exists()
            assert source.split("/")[0] in let_in
    assert out == ["*", "**/__pycache__"]


def test_the_build_sees_code_and_configs_alone():
    files = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg"}
    assert set(ignored()[1]) == files | {"configs", "ssl_vision"}
    secret = re.compile(r"(API_KEY|TOKEN|PASSWORD|SECRET)\w*\s*[=:]", re.IGNORECASE)
    for file in (FILE, DOCKER / "compose.yaml", DOCKER / "README.md"):
        assert not secret.search(file.read_text())


@both
def test_the_extras_exist_and_one_faiss_is_among_them(kind):
    assert 'pip install ".[${DEVICE},${EXTRAS}]"' in FILE.read_text()
    assert kind in EXTRAS
    (named,) = re.findall(r"`EXTRAS=([\w,]+)`", PAGE)
    for chosen in (named, arguments(kind)["EXTRAS"]):
        assert set(chosen.split(",")) <= set(EXTRAS) - {"cpu", "gpu"}


@both
def test_torch_is_taken_from_the_index_within_the_packages_bounds(kind):
    (pattern,) = re.findall(r"grep -E '(.*?)' setup.cfg > torch.txt", FILE.read_text())
    lines = (ROOT / "setup.cfg").read_text().splitlines()
    found = [line.strip() for line in lines if re.search(pattern, line)]
    required = SETUP["options"]["install_requires"].splitlines()
    assert found == [line for line in required if re.fullmatch(r"torch(vision)?\W.*", line)]
    assert len(found) == 2
    assert 'pip install --index-url "${TORCH_INDEX_URL}" --requirement torch.txt' in FILE.read_text()
    assert arguments(kind)["TORCH_INDEX_URL"].endswith("/cpu") == (kind == "cpu")


@both
def test_the_container_is_not_roots_and_runs_our_command(kind):
    assert the("USER", kind) == "${UID}"
    assert int(arguments(kind)["UID"]) >= 1000
    names = [name for name, _ in instructions(kind)]
    assert "RUN" not in names[names.index("USER") :]
    (script,) = yaml.safe_load(the("ENTRYPOINT", kind))
    assert SETUP["options.entry_points"]["console_scripts"].split("=")[0].strip() == script
    check = yaml.safe_load(the("HEALTHCHECK", kind).partition("CMD")[2])
    assert check == [script, "--version"]
    assert main(check[1:]) == 0
    assert main(yaml.safe_load(the("CMD", kind))) == 0


@both
def test_data_and_runs_are_volumes_where_the_configs_look_for_them(kind):
    places = [rest for name, rest in instructions(kind) if name == "WORKDIR"]
    assert places[-1] == WORKPLACE
    assert yaml.safe_load(the("VOLUME", kind)) == [f"{WORKPLACE}/data", f"{WORKPLACE}/runs"]
    assert any(name == "COPY" and rest == "configs configs" for name, rest in instructions(kind))


class Parsed(BaseException):
    """Ends a command once its options are accepted."""


def accepted(args, monkeypatch, tmp_path):
    """Gives a command line to the real parser, in the root of the repository, which has the configs."""

    def stop(self):
        raise Parsed

    monkeypatch.chdir(ROOT)
    if args[0] == "fit":
        monkeypatch.setattr("ssl_vision.cli.fit.RunCLI.before_instantiate_classes", stop)
        with pytest.raises(Parsed):
            main(args)
    elif args[0] == "sweep":
        assert main([*args, "--dry_run", f"--runs_dir={tmp_path}"]) == 0
    else:
        assert args[0] in COMMANDS
        assert not [arg for arg in args if arg.startswith("-")]


RUNS = re.findall(r"^docker run .*? (ssl-vision\S*) (.*)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize(("image", "command"), RUNS)
def test_the_commands_of_the_page_are_accepted(image, command, monkeypatch, tmp_path):
    assert f"--tag {image} ." in PAGE
    accepted(shlex.split(command), monkeypatch, tmp_path)


def test_the_page_and_the_compose_file_name_what_exists():
    said = PAGE + (DOCKER / "compose.yaml").read_text()
    for file in re.findall(r"--file (\S+)", said) + re.findall(r"`(configs/\S+\.yaml)`", said):
        assert (ROOT / file).is_file()
    for argument in re.findall(r"--build-arg (\w+)=", PAGE):
        assert all(argument in arguments(kind) for kind in ("gpu", "cpu"))
    for mount in re.findall(r'-v "\$PWD/\w+:(\S+)"', PAGE):
        assert mount in yaml.safe_load(the("VOLUME", "gpu"))
    services = compose()["services"]
    for service in re.findall(r"--scale ([\w-]+)=", said) + re.findall(r"cp ([\w-]+):", said):
        assert service in services
    for profile in re.findall(r"--profile (\w+)", said):
        assert any(profile in service["profiles"] for service in services.values())


def compose(**environment):
    """The compose file with its variables filled in, as Compose does."""

    def value(match):
        return environment.get(match[1], match[2])

    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (DOCKER / "compose.yaml").read_text())
    assert "${" not in filled
    return yaml.safe_load(filled)


def test_workers_share_one_queue_and_each_has_a_gpu_of_its_own():
    file = compose()
    services = file["services"]
    devices = []
    for name, service in services.items():
        (kind,) = service["profiles"]
        assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
        assert ROOT / service["build"]["dockerfile"] == FILE
        assert service["build"].get("args", {"DEVICE": "gpu"}) == {"DEVICE": kind}
        assert service["image"] == {"gpu": "ssl-vision", "cpu": "ssl-vision:cpu"}[kind]
        assert service["command"] == services["worker-0"]["command"]
        mounts = dict(reversed(mount.split(":")[:2]) for mount in service["volumes"])
        assert mounts[f"{WORKPLACE}/runs"] in file["volumes"]
        assert set(mounts) == set(yaml.safe_load(the("VOLUME", kind)))
        if kind == "gpu":
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
            devices += device["device_ids"]
        else:
            assert service["deploy"]["replicas"] > 1, name
    assert sorted(devices) == ["0", "1"]


def test_workers_are_shut_off_from_the_world():
    for service in compose()["services"].values():
        assert not {"ports", "network_mode", "privileged", "user"} & set(service)
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(
    "sweep", [{}, *({"SWEEP": name} for name in re.findall(r"^SWEEP=(\w+)", PAGE, re.M))]
)
def test_the_sweeps_command_is_accepted(sweep, monkeypatch, tmp_path):
    accepted(compose(**sweep)["services"]["worker-0"]["command"], monkeypatch, tmp_path)
