"""What to do next for a job: an observed state in, a status and actions out.

Pure: no I/O, no clock (the time is part of the snapshot), no memory between calls. `snapshot` says what is observed,
`queueing` runs admission over the jobs that wait, `decide` turns one job's state into a `Decision`, `objects` renders
what the decision creates, and `calibration` folds what jobs measured into their fabric's status.
"""

from kronos.lifecycle.calibration import lessons_learnt
from kronos.lifecycle.conditions import gist
from kronos.lifecycle.decide import decide, format_time
from kronos.lifecycle.decision import Create, Decision, Delete, Event
from kronos.lifecycle.queueing import Outcome, Preempted, Reservation, Wait, run_admission
from kronos.lifecycle.queues import queue_statuses
from kronos.lifecycle.snapshot import JobView, PodView, PodWarning, PriorityClass, QueueView, Snapshot

__all__ = [
    "Create",
    "Decision",
    "Delete",
    "Event",
    "JobView",
    "Outcome",
    "PodView",
    "PodWarning",
    "Preempted",
    "PriorityClass",
    "QueueView",
    "Reservation",
    "Snapshot",
    "Wait",
    "decide",
    "format_time",
    "gist",
    "lessons_learnt",
    "queue_statuses",
    "run_admission",
]
