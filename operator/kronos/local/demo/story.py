"""What is seen of the jobs from watch events, and what the demo concludes from it. No I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kronos.api import GROUP
from kronos.api.status import TrainingJobStatus

Object = Mapping[str, Any]
Gang = tuple[str, str]
"""Name of a job and number of its attempt."""
JOB_LABEL = f"{GROUP}/job"
ATTEMPT_LABEL = f"{GROUP}/attempt"
UNTRAINED = math.log(256)
"""Loss of a model that finds every byte equally likely, as an untrained one does."""
CLEARLY_DOWN = 0.8
"""The last loss must be less than this part of the untrained model's. The first report may come many steps late."""


@dataclass(frozen=True)
class Row:
    """One job at one moment, ready to be shown."""

    name: str
    status: TrainingJobStatus
    steps: int

    @property
    def strategy(self) -> str:
        """The chosen strategy; empty while there is none."""
        return self.status.strategy.summary if self.status.strategy else ""

    @property
    def step(self) -> int | None:
        """Steps done, once something was reported."""
        return self.status.progress.step if self.status.progress else None

    @property
    def loss(self) -> float | None:
        """The last loss reported."""
        return self.status.progress.loss if self.status.progress else None

    @property
    def tokens_per_second(self) -> float | None:
        """The last speed reported."""
        return self.status.progress.tokens_per_second if self.status.progress else None


def row_of(job: Object) -> Row:
    """A row from a KronosTrainingJob as the API server has it."""
    return Row(
        name=job["metadata"]["name"],
        status=TrainingJobStatus.model_validate(job.get("status") or {}),
        steps=job["spec"]["optimization"]["steps"],
    )


@dataclass
class Story:
    """Everything seen since the jobs were applied."""

    names: Sequence[str]
    rows: dict[str, Row] = field(default_factory=dict)
    losses: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """By job: (step, loss) in the order in which they were reported."""
    waits: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By job: the reasons that it gave for waiting while another job held a place."""
    moments: list[Mapping[Gang, frozenset[str]]] = field(default_factory=list)
    """The pods that held accelerators (bound to a node, not ended), by gang, after each change of that."""

    def see_job(self, job: Object) -> None:
        """Take in a job's newest state."""
        row = row_of(job)
        self.rows[row.name] = row
        if (
            row.step is not None
            and row.loss is not None
            and (row.step, row.loss) not in self.losses[row.name]
        ):
            self.losses[row.name].append((row.step, row.loss))
        for other in self.rows.values():
            self._see_waiting(other)

    def _see_waiting(self, row: Row) -> None:
        others = [other for other in self.rows.values() if other.name != row.name]
        if (
            row.status.phase == "Queued"
            and row.status.reason
            and any(other.status.phase in ("Starting", "Running") for other in others)
            and row.status.reason not in self.waits[row.name]
        ):
            self.waits[row.name].append(row.status.reason)

    def see_pod(self, event: str, pod: Object) -> None:
        """Take in a watch event of a pod."""
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
        if JOB_LABEL not in labels:
            return
        ended = event == "DELETED" or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        gang = (labels[JOB_LABEL], labels[ATTEMPT_LABEL])
        last = self.moments[-1] if self.moments else {}
        held = last.get(gang, frozenset()) - {name}
        if not ended and pod["spec"].get("nodeName"):
            held |= {name}
        if held != last.get(gang, frozenset()):
            self.moments.append({**last, gang: held})

    @property
    def in_order(self) -> list[Row]:
        """The rows of the jobs seen so far, always in the same order."""
        return [self.rows[name] for name in self.names if name in self.rows]

    @property
    def over(self) -> bool:
        """Whether all jobs are complete, or one will never be."""
        phases = [self.rows[name].status.phase if name in self.rows else None for name in self.names]
        return "Failed" in phases or all(phase == "Complete" for phase in phases)

    def faults(self) -> list[str]:
        """What is wrong with the whole story, each as a sentence; empty when the demo has shown what it should."""
        found = [
            f"{row.name} failed: {row.status.reason}"
            for row in self.rows.values()
            if row.status.phase == "Failed"
        ]
        if found:
            return found
        found += [
            f"{one} and {other} each held a part of the accelerators that it needs."
            for one, other in self._halves()
        ]
        if not any(self.waits.values()):
            found.append("no job was seen waiting with a reason while the other held a place.")
        for name in self.names:
            losses = [loss for _, loss in self.losses[name]]
            if not losses:
                found.append(f"{name} never reported its loss.")
            elif losses[-1] >= CLEARLY_DOWN * UNTRAINED or losses[-1] > losses[0]:
                found.append(f"the loss of {name} isn't clearly down: {losses[0]:.2f} to {losses[-1]:.2f}.")
        return found

    def _halves(self) -> set[tuple[str, str]]:
        """Pairs of jobs that each held some accelerators before either had been whole."""
        found: set[tuple[str, str]] = set()
        whole: set[Gang] = set()
        for moment in self.moments:
            whole |= {gang for gang, pods in moment.items() if len(pods) >= self._size(gang[0])}
            partly = sorted({gang[0] for gang, pods in moment.items() if pods and gang not in whole})
            found |= set(pairwise(partly))
        return found

    def _size(self, job: str) -> int:
        """How many pods the whole gang has."""
        placement = self.rows[job].status.placement if job in self.rows else None
        return len(placement.members) if placement else 1

    def places(self, racks: Mapping[str, str]) -> list[str]:
        """Where each job ran, by rack: a line per job. `racks` maps nodes to their racks."""
        lines = []
        for name in self.names:
            row = self.rows[name]
            if row.status.placement is None:
                lines.append(f"{name}: its place isn't in its status")
                continue
            by_rack: dict[str, list[str]] = defaultdict(list)
            for member in row.status.placement.members:
                by_rack[racks.get(member.node, "no rack")].append(f"{member.node} ({member.ranks})")
            parts = [f"{rack}: {', '.join(nodes)}" for rack, nodes in sorted(by_rack.items())]
            lines.append(f"{name} ({row.strategy}): {'; '.join(parts)}")
        return lines

    def improvements(self) -> list[str]:
        """The first and the last loss of each job: a line per job."""
        lines = []
        for name in self.names:
            (first_step, first), (last_step, last) = self.losses[name][0], self.losses[name][-1]
            lines.append(f"{name}: loss {first:.2f} at step {first_step}, {last:.2f} at step {last_step}")
        return lines

    def waited(self) -> list[str]:
        """Who waited for the other, and why: a line per job that did."""
        return [f"{name} waited: {reasons[0]}" for name, reasons in self.waits.items() if reasons]
