"""``ssl-vision sweep``: train the trials of a W&B sweep file without a W&B account."""

import difflib
import itertools
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.cli.early_check import checked
from ssl_vision.cli.import_paths import names_in_command
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.recipes import CONFIGS, find_recipe
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import described, description_of
from ssl_vision.errors import InputError
from ssl_vision.optional import needed
from ssl_vision.runs.folder import run_path
from ssl_vision.runs.reading import read_text
from ssl_vision.sweeps.machines import Submitit, slots
from ssl_vision.sweeps.macros import is_fit, runs_fit
from ssl_vision.sweeps.parameters import Choice
from ssl_vision.sweeps.sweep_file import SweepFile, check_cap, read_sweep_file
from ssl_vision.sweeps.sweep_plan import ATTEMPTS, Plan
from ssl_vision.sweeps.sweep_process import command_line
from ssl_vision.sweeps.trials import named_trial, trials_of

_NOT_HERE = {
    "--overwrite": "delete the directory of the sweep, or choose another --name",
    "--ckpt_path": "every trial continues from its last checkpoint automatically",
}
"""Options of ``fit`` that a sweep sets itself, and what to do instead."""

_CHECKED = 100
_NO_PARAMETERS = ("ckpt_path", "name", "overwrite", "report", "runs_dir")
"""Options of ``fit`` that a sweep sets for each trial, after its parameters."""

_OPTION = re.compile(r"--?[A-Za-z]")
"""The beginning of an option; -1 is a value."""


def run(args: Sequence[str]) -> None:
    """Train every trial of a sweep file in its own process, and write tables and plots.

    Options of ``fit`` are passed to every trial after those of the file. The same command resumes an
    interrupted sweep. Several such processes, also on machines that share the directory, share the trials.

    Raises:
        InputError: the file or an option is invalid, or the directory contains another sweep.
    """
    parser = _parser()
    own_args, passed = _split(parser, list(args))
    options = parser.parse_args(own_args)
    path = find_recipe(options.file, CONFIGS / "sweep", "sweep file")
    file = read_sweep_file(path)
    _check_metric(file, passed)
    plan = Plan(
        folder=_folder(options.runs_dir, str(options.name or file.content.get("name") or path.stem)),
        text=read_text(path),
        cap=check_cap(file, options.trials),
        options=tuple(passed),
        seed=options.seed,
        evaluate=_protocols(file, options.evaluate or ()),
    )
    if runs_fit(file.command, file.program):
        _check_trials(plan)
    if options.dry_run:
        _show(plan)
        return
    needed("optuna", extra="sweep")
    needed("plotly", extra="sweep")
    _work(plan, options)


def _work(plan: Plan, options: Namespace) -> None:
    """Train, write tables and plots, and print a summary."""
    from ssl_vision.sweeps.cluster import SlurmJob, ended, submitted
    from ssl_vision.sweeps.evaluation import Evaluations
    from ssl_vision.sweeps.plot import write_plot
    from ssl_vision.sweeps.queue import Queue
    from ssl_vision.sweeps.results_table import write_tables
    from ssl_vision.sweeps.worker import Worker

    workers, per_gpu, cluster = options.workers, options.per_gpu, options.submitit
    places = [] if workers == 0 or cluster.jobs else slots(workers=workers, per_gpu=per_gpu)
    queue = Queue(plan, retry=workers != 0)
    done, count = queue.left()
    print(f"{plan.folder}: {done} of {count} trials done", flush=True)
    number, reasons, messages = 0, {}, []
    if cluster.jobs and workers != 0:
        jobs = submitted(SlurmJob(plan, workers, per_gpu), cluster)
        print(f"jobs {', '.join(job.job_id for job in jobs)}; Ctrl-C does not stop them", flush=True)
        try:
            messages = ended(jobs)
        except KeyboardInterrupt:
            print(
                "the jobs keep running; the same command with --workers 0 shows their progress",
                file=sys.stderr,
            )
            raise SystemExit(130) from None
        for line in messages:
            print(line, file=sys.stderr)
    elif places:
        print(f"ssl-vision runs {plan.folder} shows the progress of each trial", flush=True)
        worker = Worker(queue, places)
        number = worker.work()
        reasons = worker.evaluations.failed
    records = queue.records()
    print(f"\n{write_tables(plan.folder, records, queue.file.metric)}")
    page = write_plot(plan.folder, records, queue.file.metric)
    print(f"\nwritten to {plan.folder}: sweep.csv, sweep.md{', ' + page.name if page else ''}")
    if number:
        print(f"{signal.Signals(number).name}: repeat the command to continue", file=sys.stderr)
        raise SystemExit(128 + number)
    if failed := sum(record.state == "failed" for record in records):
        print(
            f"{failed} of {len(records)} trials failed: see {plan.folder}/logs; "
            f"the same command retries them, up to {ATTEMPTS} attempts each",
            file=sys.stderr,
        )
    evaluations = Evaluations(queue)
    unevaluated = evaluations.unevaluated() if workers != 0 else []
    reasons = evaluations.failed | reasons
    for name in unevaluated:
        reason = reasons.get(name, f"see {plan.folder}/logs")
        print(f"{name} is not evaluated: {reason}; the same command retries it", file=sys.stderr)
    if failed or unevaluated or messages:
        raise SystemExit(1)


def _show(plan: Plan) -> None:
    """Print the trials and their commands, and check the options of those that are ``ssl-vision fit``.

    Raises:
        InputError: ``fit`` does not accept the options of a trial.
    """
    from ssl_vision.cli.fit import check_options
    from ssl_vision.sweeps.evaluation import evaluation_line

    trials = trials_of(plan.file, cap=plan.cap, seed=plan.seed)
    refused: list[str] = []
    for number, trial in enumerate(trials):
        lines = [command_line(plan, trial)]
        words = lines[0]
        if is_fit(words) and sys.executable in words:  # in the environment of this process
            try:
                check_options(words[words.index("fit") :])
            except InputError as error:
                refused.append(f"{trial.name}: {error}")
        if plan.evaluate:
            lines.append(evaluation_line(plan, trial, plan.evaluate, baselines=number == 0))
        print("\n  ".join([trial.name, *map(shlex.join, lines)]))
    print(
        f"{len(trials)} trials"
        if plan.file.method != "bayes"
        else f"{plan.cap} trials, each chosen from the results of earlier ones"
    )
    if refused:
        count = f"; {len(refused)} trials are refused" if refused[1:] else ""
        raise InputError(f"{refused[0]}{count}")


def _protocols(file: SweepFile, names: Sequence[str]) -> tuple[str, ...]:
    """Check the protocols before the first trial is trained.

    Raises:
        InputError: a protocol is unknown, or the command of the sweep file is not ``ssl-vision fit``.
    """
    if not names:
        return ()
    if not runs_fit(file.command, file.program):
        raise InputError("--evaluate: the command of the sweep file is not ssl-vision fit")
    from ssl_vision.evaluation.protocol import read_protocol, shipped

    every = [name for name in shipped() if name != "online"]  # which requires --online_probe true
    chosen = tuple(dict.fromkeys(each for name in names for each in (every if name == "all" else [name])))
    if len({read_protocol(name).name for name in chosen}) < len(chosen):
        raise InputError(f"--evaluate: two of {', '.join(chosen)} have the same name")
    return chosen


def _check_trials(plan: Plan) -> None:
    """Check the options and classes of the first trials, before one is trained.

    Raises:
        InputError: ``ssl-vision fit`` has no such option or class, or the sweep sets the option itself.
    """
    for path in plan.file.parameters:
        if ".".join(path) in _NO_PARAMETERS:
            raise InputError(f"parameters.{'.'.join(path)}: a sweep sets this option itself")
    trials = trials_of(plan.file, cap=min(plan.cap or _CHECKED, _CHECKED), seed=plan.seed)
    middle = {path: parameter.at(0.5) for path, parameter in plan.file.parameters.items()}
    for trial in trials or [named_trial(plan.file, middle)]:
        words = command_line(plan, trial)
        if is_fit(words):
            checked(words[words.index("fit") + 1 :])


def _check_metric(file: SweepFile, passed: Sequence[str]) -> None:
    """Check that validation logs the metric, unless a class of the user's may log it.

    Raises:
        InputError: no trial can log the metric.
    """
    name = file.metric.name
    choices = (each.values for each in file.parameters.values() if isinstance(each, Choice))
    words = list(map(str, (*file.command, *itertools.chain.from_iterable(choices), *passed)))
    others = [each for each in names_in_command(words) if not each.startswith("ssl_vision.")]
    known = [*(each.logged_name for each in described()), "val/collapsed"]
    unknown = name.startswith("val/") and description_of(name).logged_name not in known
    if unknown and runs_fit(file.command, file.program) and not others:
        raise InputError(f"metric.name: no trial logs '{name}'{closest_match(name, known)}")


def _folder(runs_dir: str, name: str) -> Path:
    if name.startswith("."):
        raise InputError(f"--name {name}: a name must not begin with a dot")
    return run_path(runs_dir, name)


def _split(parser: ArgumentParser, args: list[str]) -> tuple[list[str], list[str]]:
    """Separate the options of this command from those of the trials.

    Raises:
        InputError: an option closely resembles one of this command, or is set by the sweep itself.
    """
    own_names = [option for action in parser._actions for option in action.option_strings]
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
            if name in _NOT_HERE:
                raise InputError(f"{name}: {_NOT_HERE[name]}")
        destination.append(arg)
    return own_args, trial_args


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision sweep", description=run.__doc__)
    parser.add_argument("file", type=str, help="W&B sweep file, or the name of one of configs/sweep/.")
    parser.add_argument(
        "--workers",
        type=NonNegativeInt | None,
        default=None,
        help="Trials at a time (default: one for each GPU, or one). 0 only writes tables and plots.",
    )
    parser.add_argument(
        "--per_gpu", "--per-gpu", type=PositiveInt | None, default=None, help="Trials at a time on each GPU."
    )
    parser.add_argument(
        "--name", type=str | None, default=None, help="Name of the sweep (default: that of the file)."
    )
    parser.add_argument(
        "--runs_dir",
        type=str,
        default="runs",
        help="Directory in which the sweep gets its own directory.",
    )
    parser.add_argument(
        "--trials",
        type=PositiveInt | None,
        default=None,
        help="Maximum number of trials, instead of run_cap in the file.",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the methods random and bayes.")
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
