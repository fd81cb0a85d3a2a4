"""What jobs measured, folded into a correction of predictions, for each accelerator of each fabric.

The fabric's status is the memory: it holds one sample for each of the last jobs. So the same snapshot always gives the same
status, however often it is asked, and jobs that are deleted later stay counted. A job is counted once it has done enough
steps, again whenever it has done twice as many, and when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, isfinite, log
from statistics import fmean, median

from kronos.api.fabric import MOST_SAMPLES, Calibration, CalibrationSample, FabricStatus
from kronos.lifecycle.snapshot import JobView, Snapshot

MEASURED_STEPS = 20
"""Steps since a job was last started after which its time per step counts as measured: the first ones are slower."""
LEAST_RATIO, MOST_RATIO = 1e-6, 1e6
"""Beyond these, measured over predicted time tells of a mistake rather than of an accelerator."""


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
    """What the jobs on a fabric have measured, by resource."""
    for _, job in sorted(snapshot.jobs.items()):
        if job.spec is None or job.spec.placement.fabric != fabric:
            continue
        sample = _sample(job)
        if sample is not None:
            yield job.spec.accelerators.resource, sample


def _sample(job: JobView) -> CalibrationSample | None:
    """What a job has measured, once it has done enough steps since it was last started.

    Nothing of it follows from when it is asked for, so that the same jobs always leave the same samples.
    """
    status, strategy, progress = job.status, job.status.strategy, job.status.progress
    at = status.finished_at or status.started_at
    if strategy is None or progress is None or progress.measured_step_seconds is None or at is None:
        return None
    if progress.attempt != status.attempt or progress.step - progress.began_at_step < MEASURED_STEPS:
        return None
    predicted, correction = strategy.predicted.step_seconds, strategy.predicted.correction
    measured = progress.measured_step_seconds
    if not all(isfinite(value) and value > 0 for value in (predicted, correction, measured)):
        return None
    ratio = measured / (predicted / correction)
    if not LEAST_RATIO <= ratio <= MOST_RATIO:
        return None
    return CalibrationSample(
        uid=job.uid,
        job=f"{job.namespace}/{job.name}",
        ratio=float(f"{ratio:.4g}"),
        steps=progress.step,
        at=at,
    )


def _with_sample(status: FabricStatus, resource: str, sample: CalibrationSample) -> FabricStatus:
    """The status with a job's sample, if that says something new and is among the latest.

    A sample stays until its job has done twice as many steps, so that writes are few, or has ended.
    """
    before = next((item for item in status.calibrations if item.resource == resource), None)
    known = before.samples if before else ()
    earlier = next((item for item in known if item.uid == sample.uid), None)
    if earlier is not None and sample.at == earlier.at and sample.steps < 2 * earlier.steps:
        return status
    others = [item for item in known if item.uid != sample.uid]
    samples = tuple(sorted((*others, sample), key=lambda item: (item.at, item.uid))[-MOST_SAMPLES:])
    if samples == known:
        return status
    factor = exp(median(log(item.ratio) for item in samples))
    values = {
        "resource": resource,
        "factor": float(f"{factor:.4g}"),
        "error_percent": round(100 * fmean(abs(item.ratio / factor - 1) for item in samples), 1),
        "samples": samples,
    }
    calibration = before.model_copy(update=values) if before else Calibration.model_validate(values)
    calibrations = {item.resource: item for item in (*status.calibrations, calibration)}
    return status.model_copy(update={"calibrations": tuple(item for _, item in sorted(calibrations.items()))})
