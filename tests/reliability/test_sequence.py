"""Tests that a run trains on the same images with and without an interruption, whatever its options.

Every pair of option values occurs together in some case of `CASES`. The default suite runs only `SAMPLE`;
``SSL_VISION_SEQUENCES=all`` runs all cases, including those with two processes.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from equal import difference_of_runs
from recorder import SECONDS
from settings import TINY

import ssl_vision.cli.fit  # noqa: F401  so that forked runs need not import it again
from ssl_vision.main import main

OPTIONS = {
    "schedule": {
        "constant": [],
        "cosine": ["--model.optimizer.schedule=cosine"],
        "warm-up": ["--model.optimizer.schedule=cosine", "--model.optimizer.warmup_epochs=1"],
    },
    "interruption": {
        "SIGKILL": [],
        "SIGTERM": [],
        "SIGINT": [],
        "SIGUSR1": [],
        "max_time": [f"--trainer.max_time={{seconds: {SECONDS:.0f}}}"],
        "max_steps": ["--trainer.max_steps=3"],
    },
    "optimizer": {name: [f"--model.optimizer.name={name}"] for name in ("adam", "adamw", "sgd", "lars")},
    "objective": {
        "InfoNCE": ["--model.objective=InfoNCE", "--model.objective.temperature=Learnable"],
        "MACL": ["--model.objective=MACL"],
        "RECLAIM": [
            "--model.objective=RECLAIM",
            "--model.objective.negatives=random",
            "--model.objective.objective=InfoNCE",
            "--model.objective.objective.temperature=LinearInEpoch",
        ],
    },
    "save": {str(every): [f"--save_every_n_steps={every}"] for every in (1, 2, 100)},
    "validation": {
        "epoch": [],
        "half": ["--trainer.val_check_interval=0.5"],
        "third batch": ["--trainer.val_check_interval=3"],
    },
    "accumulation": {"1": [], "2": ["--trainer.accumulate_grad_batches=2"]},
    "chunks": {"no": [], "yes": ["--model.chunk_size=32"]},
    "probe": {"no": [], "yes": ["--online_probe=true"]},
    "processes": {
        "1": [],
        "2": ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=32"],
    },
}
BATCHES = 6
COMMON = [
    *TINY,
    "--trainer.max_epochs=2",
    f"--trainer.limit_train_batches={BATCHES}",
    "--data.eval_batch_size=256",
    "--trainer.limit_val_batches=1",
    "--trainer.callbacks+=recorder.Recorder",
]

Case = dict[str, str]


def possible(case: Case) -> bool:
    """Return False where ``max_steps`` would change the learning-rate schedule, and so the run."""
    return case.get("interruption") != "max_steps" or case.get("schedule") in (None, "constant")


def pairwise() -> list[Case]:
    """Choose few cases, greedily, so that every possible pair of option values occurs in one of them."""
    rng = random.Random(0)
    names = list(OPTIONS)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(OPTIONS[a], OPTIONS[b])
        if possible({a: x, b: y})
    }
    cases = []
    while missing:
        candidates = []
        for _ in range(60):
            case: Case = dict(rng.choice(sorted(missing)))
            for name in rng.sample(names, len(names)):
                fits = [value for value in OPTIONS[name] if possible(case | {name: value})]
                case.setdefault(name, rng.choice(fits))
            if possible(case):
                case = {name: case[name] for name in names}
                covered = set(itertools.combinations([(name, case[name]) for name in names], 2))
                candidates.append((len(covered & missing), len(candidates), case, covered))
        _, _, case, covered = max(candidates)
        cases.append(case)
        missing -= covered
    return cases


CASES = pairwise()
ONE_PROCESS = [case for case in CASES if case["processes"] == "1"]
SAMPLE = list({case["interruption"]: case for case in reversed(ONE_PROCESS)}.values())
"""One case for each interruption."""
CHOSEN = CASES if os.environ.get("SSL_VISION_SEQUENCES") == "all" else SAMPLE


def arguments(case: Case, folder: Path, *, interrupted: bool, resume: bool) -> list[str]:
    options = [
        option
        for name, value in case.items()
        if name != "interruption" or interrupted
        for option in OPTIONS[name][value]
    ]
    resume_options = ["--ckpt_path=last"] if resume else []
    return ["fit", f"--runs_dir={folder}", "--name=run", *COMMON, *options, *resume_options]


def run(args: list[str], environment: dict[str, str]) -> int:
    """Return the exit code of a run; runs that are killed or have two processes are started as a command."""
    is_killed = "SIGKILL" in environment.get("SSL_VISION_INTERRUPT", "")
    if is_killed or "--trainer.devices=2" in args:
        command = [sys.executable, "-m", "ssl_vision", *args]
        paths = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *filter(None, sys.path)])
        environment = os.environ | environment | {"PYTHONPATH": paths}
        if "SLURM_JOB_ID" in environment:
            return run_tasks(command, environment)
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            code = process.wait(timeout=200)
        if code:  # end the other process of a killed run
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return code
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        return main(args)


def run_tasks(command: list[str], environment: dict[str, str]) -> int:
    """Return the exit code of the two tasks of a job, which srun starts in one process group."""
    tasks: list[subprocess.Popen[bytes]] = []
    for rank in ("0", "1"):
        task_variables = {
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": rank,
            "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "2",
        }
        group = tasks[0].pid if tasks else 0
        tasks.append(subprocess.Popen(command, env=environment | task_variables, process_group=group))
    try:
        codes = [task.wait(timeout=200) for task in tasks]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tasks[0].pid, signal.SIGKILL)
    assert codes[0] == codes[1]
    return codes[0]


def records(file: Path, rank: int) -> list[list]:
    """Return the records of what a process trained on; none if the run had already ended."""
    rank_file = Path(f"{file}.{rank}")
    lines = rank_file.read_text(encoding="utf-8").splitlines() if rank_file.exists() else []
    return [json.loads(line) for line in lines]


@pytest.fixture
def slurm(tmp_path) -> dict[str, str]:
    """Variables of a job that SLURM requeues; its scontrol ends the job, as SLURM does."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text('#!/bin/sh\n[ "$SLURM_NTASKS" = 1 ] && kill -TERM $PPID || kill -TERM 0\n')
    scontrol.chmod(0o755)
    job = {"JOB_ID": os.getpid(), "JOB_NAME": "train", "NTASKS": 1, "LOCALID": 0, "NODEID": 0, "PROCID": 0}
    path = f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, **{f"SLURM_{key}": str(value) for key, value in job.items()}}


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: ",".join(case.values()).replace(" ", "-"))
def test_an_interrupted_run_trains_on_the_same_images_and_views(tmp_path, slurm, case):
    seed = CASES.index(case)
    moment = random.Random(seed).randrange(2, 2 * BATCHES)
    interruption = case["interruption"]
    reference, interrupted, resumed = (tmp_path / name for name in ("whole.rows", "cut.rows", "rest.rows"))

    def arguments_of(folder, **kinds):
        return arguments(case, tmp_path / folder, **kinds)

    assert (
        run(arguments_of("whole", interrupted=False, resume=False), {"SSL_VISION_RECORD": str(reference)})
        == 0
    )
    job = slurm if interruption == "SIGUSR1" else {}
    interrupt = (
        f"{moment}:{interruption if interruption.startswith('SIG') else 'sleep'}"
        if interruption != "max_steps"
        else "0:"
    )
    environment = {"SSL_VISION_RECORD": str(interrupted), "SSL_VISION_INTERRUPT": interrupt, **job}
    code = run(arguments_of("run", interrupted=True, resume=False), environment)
    expected = {"SIGKILL": (-9,), "SIGTERM": (143,), "SIGINT": (130,), "SIGUSR1": (143,)}.get(
        interruption, (0,)
    )
    assert code in expected
    requeued = job | {"SLURM_RESTART_COUNT": "1"} if job else {}
    environment = {"SSL_VISION_RECORD": str(resumed), **requeued}
    assert run(arguments_of("run", interrupted=False, resume=not requeued), environment) == 0

    for rank in range(int(case["processes"])):
        expected_rows, before, after = (records(file, rank) for file in (reference, interrupted, resumed))
        assert len(expected_rows) == 2 * BATCHES
        assert before == expected_rows[: len(before)]
        assert after == expected_rows[len(expected_rows) - len(after) :]
        assert len(before) + len(after) >= len(expected_rows)
    if interruption != "max_time":  # Lightning validates once more when the time is up
        assert not difference_of_runs(tmp_path / "run" / "run", tmp_path / "whole" / "run")


def test_cases_cover_option_pairs_and_sample_covers_schedules():
    for a, b in itertools.combinations(OPTIONS, 2):
        for x, y in itertools.product(OPTIONS[a], OPTIONS[b]):
            assert not possible({a: x, b: y}) or any(case[a] == x and case[b] == y for case in CASES)
    assert {case["schedule"] for case in SAMPLE} == set(OPTIONS["schedule"])
    assert {case["accumulation"] for case in SAMPLE if case["interruption"] == "max_time"} == {"2"}
