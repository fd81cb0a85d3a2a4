"""What jobs measured, folded into a correction of predictions, for each accelerator of each fabric.

The fabric's status is the memory: it holds one sample for each of the last jobs. So the same snapshot always gives the same
status, however often it is asked, and jobs that are deleted later stay counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log
from statistics import fmean, median

from kronos.api.fabric import MOST_SAMPLES, Calibration, CalibrationSample, FabricStatus
from kronos.lifecycle.decide import format_time
from kronos.lifecycle.snapshot import JobView, Snapshot

MEASURED_STEPS = 20
"""Steps after which a job's time per step counts as measured: the first ones are slower."""


def lessons_learnt(snapshot: Snapshot) -> Mapping[str, FabricStatus]:
    """The new status of every fabric about which jobs have measured something that its status doesn't say yet."""
    changed: dict[str, FabricStatus] = {}
    for name in snapshot.fabrics:
        before = snapshot.lessons.get(name, FabricStatus())
        after = before
        for resource, sample in _samples(snapshot, name):
            after = _with_sample(after, resource, sample)
        if after != before:
            changed[name] = after
    return changed


def _samples(snapshot: Snapshot, fabric: str) -> Iterator[tuple[str, CalibrationSample]]:
    """What the jobs on a fabric have measured, by resource; from each job once it has done enough steps, and when it ends."""
    for _, job in sorted(snapshot.jobs.items()):
        if job.spec is None or job.spec.placement.fabric != fabric:
            continue
        sample = _sample(snapshot, job)
        if sample is not None:
            yield job.spec.accelerators.resource, sample


def _sample(snapshot: Snapshot, job: JobView) -> CalibrationSample | None:
    strategy, progress = job.status.strategy, job.status.progress
    if strategy is None or progress is None or progress.measured_step_seconds is None:
        return None
    predicted = strategy.predicted.step_seconds / strategy.predicted.correction
    enough = progress.step >= MEASURED_STEPS and progress.attempt == job.status.attempt
    if not enough or predicted <= 0 or progress.measured_step_seconds <= 0:
        return None
    return CalibrationSample(
        uid=job.uid,
        job=f"{job.namespace}/{job.name}",
        ratio=float(f"{progress.measured_step_seconds / predicted:.4g}"),
        steps=progress.step,
        at=job.status.finished_at or format_time(snapshot.now),
    )


def _with_sample(status: FabricStatus, resource: str, sample: CalibrationSample) -> FabricStatus:
    """The status with a job's sample. The first one stays until the job has done twice as many steps, so that writes are few."""
    others = tuple(item for item in status.calibrations if item.resource != resource)
    known = next((item.samples for item in status.calibrations if item.resource == resource), ())
    earlier = next((item for item in known if item.uid == sample.uid), None)
    if earlier is not None and sample.steps < 2 * earlier.steps:
        return status
    samples = (*(item for item in known if item.uid != sample.uid), sample)[-MOST_SAMPLES:]
    factor = exp(median(log(item.ratio) for item in samples))
    calibration = Calibration(
        resource=resource,
        factor=float(f"{factor:.4g}"),
        error_percent=round(100 * fmean(abs(item.ratio / factor - 1) for item in samples), 1),
        samples=samples,
    )
    return FabricStatus(calibrations=tuple(sorted((*others, calibration), key=lambda item: item.resource)))
