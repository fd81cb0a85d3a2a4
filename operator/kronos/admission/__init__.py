"""Who goes first: jobs in order, each with its whole gang placed or waiting for one stated reason. Pure."""

from kronos.admission.jobs import Admitted, JobKey, Option, Verdict, Waiting, WaitingJob
from kronos.admission.queue import admit
from kronos.placement import reserve

__all__ = ["Admitted", "JobKey", "Option", "Verdict", "Waiting", "WaitingJob", "admit", "reserve"]
