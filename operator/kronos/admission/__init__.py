"""Who goes first: jobs in turn, each with its whole gang placed or waiting for one stated reason. Pure."""

from kronos.admission.admit import admit
from kronos.admission.jobs import Admitted, Holds, JobKey, Option, RunningJob, Verdict, Waiting, WaitingJob
from kronos.admission.quotas import Queue, Quota
from kronos.placement import reserve

__all__ = [
    "Admitted",
    "Holds",
    "JobKey",
    "Option",
    "Queue",
    "Quota",
    "RunningJob",
    "Verdict",
    "Waiting",
    "WaitingJob",
    "admit",
    "reserve",
]
