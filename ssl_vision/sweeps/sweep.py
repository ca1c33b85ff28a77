"""``ssl-vision sweep``: every trial of a W&B sweep file, trained without an account."""

import difflib
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.optional import needed
from ssl_vision.runs.folder import run_path
from ssl_vision.runs.reading import read_text
from ssl_vision.sweeps.machines import Submitit, slots
from ssl_vision.sweeps.macros import is_fit
from ssl_vision.sweeps.sweep_file import SweepFile, check_cap, read_sweep_file
from ssl_vision.sweeps.sweep_plan import Plan

_NOT_HERE = {
    "--overwrite": "delete the sweep's folder, or give another --name",
    "--ckpt_path": "every trial continues from its last checkpoint by itself",
}
"""Options of fit that a sweep decides, and what to do instead."""

_OPTION = re.compile(r"--?[A-Za-z]")
"""How an option begins; -1 is a value."""


def run(args: Sequence[str]) -> None:
    """Trains every trial of a sweep file in a process of its own, and writes a table and a plot.

    Options of ``fit`` are passed to every trial, after those of the file. The same command continues a sweep
    that was stopped or killed; several at a time, also on machines that share the folder, share the work.

    Raises:
        InputError: a wrong file or option, or a folder that holds another sweep.
    """
    parser = _parser()
    own, passed = _split(parser, list(args))
    options = parser.parse_args(own)
    file = read_sweep_file(options.file)
    plan = Plan(
        folder=_folder(
            options.runs_dir, str(options.name or file.content.get("name") or Path(options.file).stem)
        ),
        text=read_text(Path(options.file)),
        cap=check_cap(file, options.trials),
        options=tuple(passed),
        seed=options.seed,
        attempts=options.attempts,
        storage=options.storage,
        evaluate=_protocols(file, options.evaluate or ()),
    )
    if options.dry_run:
        _show(plan)
        return
    needed("optuna", extra="sweep")
    needed("plotly", extra="sweep")
    _work(plan, options)


def _work(plan: Plan, options: Namespace) -> None:
    """Trains, writes table and plot, and says how it ended."""
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
    number, reasons = 0, {}
    if cluster.jobs:
        jobs = submitted(SlurmJob(plan, workers, per_gpu), cluster)
        print(f"jobs {', '.join(job.job_id for job in jobs)}; Ctrl-C leaves them to themselves", flush=True)
        try:
            said = ended(jobs)
        except KeyboardInterrupt:
            print("the jobs go on; with --workers 0 the same command says how far they are", file=sys.stderr)
            raise SystemExit(130) from None
        for line in said:
            print(line, file=sys.stderr)
    elif places:
        print(f"ssl-vision runs {plan.folder} says how far each is", flush=True)
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
            f"the same command tries them again, each {plan.attempts} times in all",
            file=sys.stderr,
        )
    evaluations = Evaluations(queue)
    unevaluated = evaluations.unevaluated() if workers != 0 else []
    reasons = evaluations.failed | reasons
    for name in unevaluated:
        reason = reasons.get(name, f"see {plan.folder}/logs")
        print(f"{name} is not evaluated: {reason}; the same command tries it again", file=sys.stderr)
    if failed or unevaluated:
        raise SystemExit(1)


def _show(plan: Plan) -> None:
    """Prints the trials and their commands."""
    from ssl_vision.sweeps.evaluation import evaluation_line
    from ssl_vision.sweeps.sweep_process import command_line
    from ssl_vision.sweeps.trials import trials_of

    trials = trials_of(plan.file, cap=plan.cap, seed=plan.seed)
    for trial in trials:
        lines = [command_line(plan, trial)]
        if plan.evaluate:
            lines.append(evaluation_line(plan, trial, plan.evaluate))
        print("\n  ".join([trial.name, *(shlex.join(line.shown) for line in lines)]))
    print(
        f"{len(trials)} trials"
        if plan.file.method != "bayes"
        else f"{plan.cap} trials, each chosen by those before"
    )


def _protocols(file: SweepFile, names: Sequence[str]) -> tuple[str, ...]:
    """The protocols to evaluate by, checked before the first trial is trained.

    Raises:
        InputError: no such protocol, or the command of the sweep file is not ``ssl-vision fit``.
    """
    if not names:
        return ()
    if not is_fit([str(file.program if word == "${program}" else word) for word in file.command]):
        raise InputError("--evaluate: the command of the sweep file is not ssl-vision fit")
    from ssl_vision.evaluation.protocol import read_protocol, shipped

    every = [name for name in shipped() if name != "online"]  # which requires --online_probe true
    chosen = tuple(dict.fromkeys(each for name in names for each in (every if name == "all" else [name])))
    if len({read_protocol(name).name for name in chosen}) < len(chosen):
        raise InputError(f"--evaluate: two of {', '.join(chosen)} have one name")
    return chosen


def _folder(runs_dir: str, name: str) -> Path:
    if name.startswith("."):
        raise InputError(f"--name {name}: a name that does not begin with a dot")
    return run_path(runs_dir, name)


def _split(parser: ArgumentParser, args: list[str]) -> tuple[list[str], list[str]]:
    """The options of this command, and those for the trials.

    Raises:
        InputError: an option that is nearly one of this command's, or one that a sweep decides.
    """
    own = [option for action in parser._actions for option in action.option_strings]
    mine: list[str] = []
    theirs: list[str] = []
    place = mine
    for arg in args:
        name = arg.partition("=")[0]
        if _OPTION.match(name):
            place = mine if name in own else theirs
            near = difflib.get_close_matches(name, own, n=1, cutoff=0.85)
            if place is theirs and near:
                raise InputError(f"{name}: did you mean {near[0]}?")
            if name in _NOT_HERE:
                raise InputError(f"{name}: {_NOT_HERE[name]}")
        place.append(arg)
    return mine, theirs


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision sweep", description=run.__doc__)
    parser.add_argument("file", type=str, help="A W&B sweep file.")
    parser.add_argument(
        "--workers",
        type=NonNegativeInt | None,
        default=None,
        help="Trials at a time; one for each GPU, or one, by default. 0 writes table and plot alone.",
    )
    parser.add_argument(
        "--per_gpu", "--per-gpu", type=PositiveInt | None, default=None, help="Trials at a time on each GPU."
    )
    parser.add_argument("--name", type=str | None, default=None, help="The name; the file's by default.")
    parser.add_argument("--runs_dir", type=str, default="runs", help="The folder of the sweep's folder.")
    parser.add_argument(
        "--trials",
        "--cells",
        type=PositiveInt | None,
        default=None,
        help="The largest number of trials, instead of the file's run_cap.",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of random and bayes.")
    parser.add_argument("--attempts", type=PositiveInt, default=3, help="How often a trial may fail.")
    parser.add_argument(
        "--evaluate",
        action="append",
        type=str,
        metavar="PROTOCOL",
        help="Evaluate each finished trial under this protocol of ssl-vision evaluate; may be repeated.",
    )
    parser.add_argument(
        "--storage", type=str | None, default=None, help="URL of a database for Optuna, instead of sweep.db."
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="Print the trials and their commands, and do nothing."
    )
    parser.add_class_arguments(Submitit, "submitit", help="Workers as jobs of a cluster.")
    return parser
