"""Tests of the files of docker/: what they name exists, and the command line accepts their commands.

No container engine is needed.
"""

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

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
FILE = DOCKER / "Dockerfile"
PAGE = (DOCKER / "README.md").read_text()
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]
WORKPLACE = "/workspace"

for_both_kinds = pytest.mark.parametrize("kind", ["gpu", "cpu"])


def instructions(kind):
    """Yield (NAME, rest) of each instruction for a device, without comments and with lines joined."""
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    included = True
    for name, rest in (line.split(maxsplit=1) for line in joined.splitlines() if line):
        if name == "FROM":
            included = rest in (f"${{BASE}} AS {kind}", "${DEVICE}")
        if included:
            yield name, rest


def only_instruction(name, kind):
    """Text after the only instruction of a name."""
    (rest,) = [rest for instruction, rest in instructions(kind) if instruction == name]
    return rest


def arguments(kind):
    """Default values of the build arguments."""
    return dict(rest.split("=", 1) for name, rest in instructions(kind) if name == "ARG" and "=" in rest)


def ignore_patterns():
    """Patterns of .dockerignore: those that exclude, and those that include again."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    return [line for line in lines if line[0] != "!"], [line[1:] for line in lines if line[0] == "!"]


@pytest.mark.skipif(not shutil.which("hadolint", path=Path(sys.executable).parent), reason="no hadolint")
def test_hadolint_reports_nothing():
    linter = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([linter, FILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@for_both_kinds
def test_every_variable_is_declared_before_it_is_used(kind):
    global_args, stage_args = set(), None  # an ARG before the first FROM is visible only in FROM lines
    for name, rest in instructions(kind):
        used = set(re.findall(r"\$\{?(\w+)", rest))
        assert used <= (global_args if stage_args is None or name == "FROM" else stage_args), (name, rest)
        if name == "FROM" and rest != "${DEVICE}":  # that stage inherits the device stage's arguments
            stage_args = set()
        if name == "ARG":
            (global_args if stage_args is None else stage_args).add(rest.split("=")[0])


@for_both_kinds
def test_copied_files_exist_and_are_not_ignored(kind):
    excluded, included = ignore_patterns()
    for name, rest in instructions(kind):
        for source in shlex.split(rest)[:-1] if name == "COPY" else ():
            assert (ROOT / source).exists()
            assert source.split("/")[0] in included
    assert excluded == ["*", "**/__pycache__"]


@for_both_kinds
def test_dependencies_can_be_installed_from_files_copied_before(kind):
    """The metadata of the package, such as its version, are read from these files."""
    names = list(instructions(kind))
    first = next(i for i, (name, rest) in enumerate(names) if name == "RUN" and "pip install" in rest)
    copied = {source for name, rest in names[:first] if name == "COPY" for source in shlex.split(rest)[:-1]}
    modules = re.findall(r"attr: ([\w.]+)\.\w+", (ROOT / "setup.cfg").read_text())
    assert modules
    needed = {f"{module.replace('.', '/')}.py" for module in modules}
    assert needed | {"setup.cfg", "pyproject.toml"} <= copied


def test_build_context_has_only_code_and_configs_and_no_secrets():
    files = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg"}
    assert set(ignore_patterns()[1]) == files | {"configs", "ssl_vision"}
    secret = re.compile(r"(API_KEY|TOKEN|PASSWORD|SECRET)\w*\s*[=:]", re.IGNORECASE)
    for file in (FILE, DOCKER / "compose.yaml", DOCKER / "README.md"):
        assert not secret.search(file.read_text())


@for_both_kinds
def test_installed_extras_exist_with_one_faiss_build(kind):
    assert 'pip install ".[${DEVICE},${EXTRAS}]"' in FILE.read_text()
    assert kind in EXTRAS
    (named,) = re.findall(r"`EXTRAS=([\w,]+)`", PAGE)
    for chosen in (named, arguments(kind)["EXTRAS"]):
        assert set(chosen.split(",")) <= set(EXTRAS) - {"cpu", "gpu"}


@for_both_kinds
def test_torch_is_installed_from_index_within_bounds_of_setup_cfg(kind):
    (pattern,) = re.findall(r"grep -E '(.*?)' setup.cfg > torch.txt", FILE.read_text())
    lines = (ROOT / "setup.cfg").read_text().splitlines()
    matched = [line.strip() for line in lines if re.search(pattern, line)]
    required = SETUP["options"]["install_requires"].splitlines()
    assert matched == [line for line in required if re.fullmatch(r"torch(vision)?\W.*", line)]
    assert len(matched) == 2
    assert 'pip install --index-url "${TORCH_INDEX_URL}" --requirement torch.txt' in FILE.read_text()
    assert arguments(kind)["TORCH_INDEX_URL"].endswith("/cpu") == (kind == "cpu")


@for_both_kinds
def test_container_runs_ssl_vision_as_unprivileged_user(kind):
    assert only_instruction("USER", kind) == "${UID}"
    assert int(arguments(kind)["UID"]) >= 1000
    names = [name for name, _ in instructions(kind)]
    assert "RUN" not in names[names.index("USER") :]
    (script,) = yaml.safe_load(only_instruction("ENTRYPOINT", kind))
    assert SETUP["options.entry_points"]["console_scripts"].split("=")[0].strip() == script
    check = yaml.safe_load(only_instruction("HEALTHCHECK", kind).partition("CMD")[2])
    assert check == [script, "--version"]
    assert main(check[1:]) == 0
    assert main(yaml.safe_load(only_instruction("CMD", kind))) == 0


@for_both_kinds
def test_data_and_runs_volumes_are_where_configs_expect_them(kind):
    directories = [rest for name, rest in instructions(kind) if name == "WORKDIR"]
    assert directories[-1] == WORKPLACE
    assert yaml.safe_load(only_instruction("VOLUME", kind)) == [f"{WORKPLACE}/data", f"{WORKPLACE}/runs"]


class Parsed(BaseException):
    """Raised to stop a command once its options are accepted."""


def assert_accepted(args, monkeypatch, tmp_path):
    """Assert that the real parser accepts a command line in the repository root, where the configs are."""

    def stop(self):
        raise Parsed

    monkeypatch.chdir(ROOT)
    if args[0] == "fit":
        monkeypatch.setattr("ssl_vision.cli.fit.FitCLI.instantiate_classes", stop)
        with pytest.raises(Parsed):
            main(args)
    elif args[0] == "sweep":
        assert main([*args, "--dry_run", f"--runs_dir={tmp_path}"]) == 0
    else:
        assert args[0] in COMMANDS
        assert not [arg for arg in args if arg.startswith("-")]


RUNS = re.findall(r"^docker run .*? (ssl-vision\S*) (.*)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize(("image", "command"), RUNS)
def test_docker_run_commands_of_readme_are_accepted(image, command, monkeypatch, tmp_path):
    assert f"--tag {image} ." in PAGE
    assert_accepted(shlex.split(command), monkeypatch, tmp_path)


def test_names_in_readme_and_compose_file_exist():
    text = PAGE + (DOCKER / "compose.yaml").read_text()

    def mentioned(*patterns):
        names = {name for pattern in patterns for name in re.findall(pattern, text)}
        assert names, patterns
        return names

    assert all((ROOT / file).is_file() for file in mentioned(r"--file (\S+)", r"`(configs/\S+\.yaml)`"))
    for kind in ("gpu", "cpu"):
        assert mentioned(r"--build-arg (\w+)=") <= set(arguments(kind))
    assert mentioned(r'-v "\$PWD/\w+:(\S+)"') <= set(yaml.safe_load(only_instruction("VOLUME", "gpu")))
    services = compose()["services"]
    assert mentioned(r"--scale ([\w-]+)=", r"cp ([\w-]+):") <= services.keys()
    profiles = {profile for service in services.values() for profile in service["profiles"]}
    assert mentioned(r"--profile (\w+)") <= profiles


def compose(**environment):
    """The compose file with its variables filled in, as Compose does."""

    def value(match):
        return environment.get(match[1], match[2])

    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", value, (DOCKER / "compose.yaml").read_text())
    assert "${" not in filled
    return yaml.safe_load(filled)


def test_workers_share_one_queue_and_have_separate_gpus():
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
        assert set(mounts) == set(yaml.safe_load(only_instruction("VOLUME", kind)))
        if kind == "gpu":
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
            devices += device["device_ids"]
        else:
            assert service["deploy"]["replicas"] > 1, name
    assert sorted(devices) == ["0", "1"]


def test_workers_have_no_ports_or_privileges():
    for service in compose()["services"].values():
        assert not {"ports", "network_mode", "privileged", "user"} & set(service)
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(
    "sweep", [{}, *({"SWEEP": name} for name in re.findall(r"^SWEEP=(\w+)", PAGE, re.M))]
)
def test_sweep_command_of_worker_is_accepted(sweep, monkeypatch, tmp_path):
    assert_accepted(compose(**sweep)["services"]["worker-0"]["command"], monkeypatch, tmp_path)
