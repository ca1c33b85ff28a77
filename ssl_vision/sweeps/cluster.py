"""Workers that submitit starts as SLURM jobs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.optional import needed
from ssl_vision.sweeps.machines import Submitit, slots
from ssl_vision.sweeps.queue import Queue
from ssl_vision.sweeps.sweep_plan import Plan
from ssl_vision.sweeps.worker import Worker


@dataclass(frozen=True)
class SlurmJob:
    """A worker that runs as a cluster job."""

    plan: Plan
    workers: int | None
    per_gpu: int | None

    def __call__(self) -> int:
        """Run until the queue has no trial to start, and return the number of a received signal or 0."""
        places = slots(workers=self.workers, per_gpu=self.per_gpu)
        return Worker(Queue(self.plan), places, waits=False).work()

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again at the time limit, when the trials save and end."""
        return needed("submitit", extra="sweep").helpers.DelayedSubmission(self)


def submitted(job: SlurmJob, options: Submitit) -> list[Any]:
    """Start the jobs.

    Raises:
        InputError: submitit is not installed, or SLURM is missing or rejects the jobs.
    """
    submitit = needed("submitit", extra="sweep")
    optional = {
        "mem_gb": options.mem_gb,
        "slurm_partition": options.partition,
        "slurm_account": options.account,
    }
    logs = job.plan.folder / "logs" / "jobs"
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=options.cluster)
        executor.update_parameters(
            name=job.plan.name,
            timeout_min=options.timeout_min,
            gpus_per_node=options.gpus,
            cpus_per_task=options.cpus,
            **{name: value for name, value in optional.items() if value is not None},
        )
        with executor.batch():
            jobs = [executor.submit(job) for _ in range(options.jobs)]
    except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"submitit cannot start jobs on {options.cluster}: {first}") from error
    return jobs


def ended(jobs: Sequence[Any]) -> list[str]:
    """Wait for the jobs and return a message for each failed one."""
    while not all(job.done() for job in jobs):
        time.sleep(2)
    return [f"job {job.job_id} failed: see {job.paths.stderr}" for job in jobs if job.exception() is not None]
