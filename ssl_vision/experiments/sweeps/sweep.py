"""``ssl-vision sweep``: train the trials of a W&B sweep file without a W&B account."""

import difflib
import itertools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.cli.fit_command import checked
from ssl_vision.cli.import_paths import names_in_command
from ssl_vision.cli.parser import ArgumentParser, actions
from ssl_vision.cli.recipes import CONFIGS, find_recipe
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import described, description_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.launcher import Submitit, slots, submitted
from ssl_vision.experiments.sweeps.sweep_file import SweepFile, parse_sweep, size
from ssl_vision.experiments.sweeps.trials import Plan, is_fit, short_names
from ssl_vision.optional import needed
from ssl_vision.runs.files import read_text
from ssl_vision.runs.folder import run_path

_CHECKED = 100
"""Most trials whose options are checked before the first is trained."""

_SETTLED = ("ckpt_path", "name", "overwrite", "report", "runs_dir")
"""Options of ``fit`` that a sweep sets for each trial, after its parameters."""

_OPTION = re.compile(r"--?[A-Za-z]")
"""The beginning of an option; -1 is a value."""


@dataclass(frozen=True)
class SweepOptions:
    """Options of the sweep; all others are those of its trials.

    Args:
        workers: trials at a time; by default one for each GPU, or one. 0 only writes tables and plots.
        name: name of the sweep; by default that of the file.
        runs_dir: directory in which the sweep gets its own directory.
        trials: maximum number of trials, instead of run_cap in the file.
        seed: seed of the methods random and bayes.
    """

    workers: NonNegativeInt | None = None
    name: str | None = None
    runs_dir: str = "runs"
    trials: PositiveInt | None = None
    seed: int = 0


def run(args: Sequence[str]) -> None:
    """Train every trial of a sweep file in its own process, and write a table and a page with charts.

    Options of ``fit`` are passed to every trial after those of the file. The same command resumes an
    interrupted sweep. Several such processes, also on machines that share the directory, share the trials.

    Raises:
        InputError: the file or an option is invalid, or the directory contains another sweep.
    """
    parser = _parser()
    own_args, passed = _split(parser, list(args))
    options = parser.parse_args(own_args)
    needed("optuna", extra="sweep")
    path = find_recipe(options.file, CONFIGS / "sweep", "sweep file")
    text = read_text(path)
    file = parse_sweep(text, where=str(path), cap=options.trials)
    name = str(options.name or file.name or path.stem)
    folder, protocols = run_path(options.runs_dir, name), _protocols(file, options.evaluate or ())
    plan = Plan(folder, text, options.trials, tuple(passed), options.seed, protocols)
    if is_fit(file.command):
        _check_trials(plan)
    if options.dry_run:
        _show(plan)
        return
    _work(plan, options)


def _work(plan: Plan, options: Namespace) -> None:
    """Train, write the table and the page, and print a summary."""
    from ssl_vision.experiments.sweeps.study import SweepStudy
    from ssl_vision.experiments.sweeps.sweep_results import write_results
    from ssl_vision.experiments.sweeps.worker import SlurmJob, Worker

    idle = options.workers == 0
    places = [] if idle or options.submitit.jobs else slots(options.workers)
    study = SweepStudy(replace(plan, evaluate=()) if idle else plan)
    worker = Worker(study, places)
    done, count = study.left()
    print(f"{plan.folder}: {done} of {count} trials done", flush=True)
    problems: list[str] = []
    if options.submitit.jobs and not idle:
        jobs = submitted(SlurmJob(plan, options.workers), options.submitit, folder=plan.folder)
        print(f"jobs {', '.join(job.job_id for job in jobs)}; Ctrl-C does not stop them", flush=True)
        failed = [job for job in jobs if job.exception() is not None]
        problems = [f"job {job.job_id} failed: see {job.paths.stderr}" for job in failed]
    elif places:
        print(f"ssl-vision runs {plan.folder} shows the progress of each trial", flush=True)
        worker.work()
    records = study.records()
    text, files = write_results(plan.folder, records, study.file.metric)
    print(f"\n{text}\n\nwritten to {plan.folder}: {', '.join(files)}")
    worker.conclude(problems)


def _show(plan: Plan) -> None:
    """Print what varies and the command of each trial."""
    file, trials = plan.file, plan.trials
    short = short_names([".".join(path) for path in file.varied])
    sizes = {title: size(file.distributions[name]) for name, title in short.items()}
    varied = [f"{name} ({count} values)" if math.isfinite(count) else name for name, count in sizes.items()]
    count = str(len(trials)) if trials else f"{file.run_cap}, each chosen from the results of earlier ones"
    print(f"trials: {count}\nthey vary: {', '.join(varied) or 'nothing'}")
    if not trials:
        return
    commands = [plan.train_command(trial) for trial in trials]
    shared = set(commands[0]).intersection(*commands[1:]) - {f"--name={trials[0].name}"}
    common = [word for word in commands[0] if word in shared]
    print(f"command: {shlex.join(common)}, and for each trial:")
    for words in commands:
        print(shlex.join(word for word in words if word not in shared))
    if plan.evaluate:
        line = plan.evaluate_command(trials[0], plan.evaluate, baselines=True)
        print(f"evaluation of the first trial: {shlex.join(line)}")


def _protocols(file: SweepFile, names: Sequence[str]) -> tuple[str, ...]:
    """Check the protocols before the first trial is trained.

    Raises:
        InputError: a protocol is unknown, or the command of the sweep file is not ``ssl-vision fit``.
    """
    if not names:
        return ()
    if not is_fit(file.command):
        raise InputError("--evaluate: the command of the sweep file is not ssl-vision fit")
    from ssl_vision.evaluation.protocol import read_protocol

    chosen = tuple(dict.fromkeys(names))
    if len({read_protocol(name).name for name in chosen}) < len(chosen):
        raise InputError(f"--evaluate: two of {', '.join(chosen)} have the same name")
    return chosen


def _check_trials(plan: Plan) -> None:
    """Check the options and classes of the first trials, and the metric, before one is trained.

    Classes of the user's may log any metric.

    Raises:
        InputError: ``ssl-vision fit`` has no such option or class, the sweep sets the option itself, or no
            trial can log the metric.
    """
    passed = {word.partition("=")[0].removeprefix("--") for word in plan.options if word.startswith("--")}
    for name in (*plan.file.distributions, *(passed - {"report"})):
        if name in _SETTLED:
            raise InputError(f"{name}: a sweep sets this option itself")
    trials = plan.trials[:_CHECKED] or [next(plan.random_trials())]
    commands = [plan.train_command(trial) for trial in trials]
    for words in commands:
        checked(words[words.index("fit") + 1 :])
    metric = plan.file.metric.name
    known = [*(each.logged_name for each in described()), "val/collapsed", "val/below_start"]
    if metric.startswith("val/") and description_of(metric).logged_name not in known:
        names = itertools.chain.from_iterable(map(names_in_command, commands))
        if all(name.startswith("ssl_vision.") for name in names):
            raise InputError(f"metric.name: no trial logs '{metric}'{closest_match(metric, known)}")


def _split(parser: ArgumentParser, args: list[str]) -> tuple[list[str], list[str]]:
    """Separate the options of this command from those of the trials.

    Raises:
        InputError: an option closely resembles one of this command.
    """
    own_names = [option for action in actions(parser) for option in action.option_strings]
    own_args: list[str] = []
    trial_args: list[str] = []
    destination = own_args
    for arg in args:
        name = arg.partition("=")[0]
        if _OPTION.match(name):
            destination = own_args if name in own_names else trial_args
            near = difflib.get_close_matches(name, own_names, n=1, cutoff=0.85)
            if destination is trial_args and near:
                raise InputError(f"{name}: did you mean {near[0]}?")
        destination.append(arg)
    return own_args, trial_args


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision sweep", description=run.__doc__)
    parser.add_argument("file", type=str, help="W&B sweep file, or the name of one of configs/sweep/.")
    parser.add_class_arguments(SweepOptions)
    parser.add_argument(
        "--evaluate",
        action="append",
        type=str,
        metavar="PROTOCOL",
        help="Protocol under which ssl-vision evaluate measures each finished trial; may be repeated.",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="Print the trials and their commands without running them."
    )
    parser.add_class_arguments(Submitit, "submitit", help="Cluster jobs that train the trials.")
    return parser
