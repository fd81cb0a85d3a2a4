"""The demo's manifests, and what an interrupted demo leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from kronos.api.job import TrainingJobSpec
from kronos.local.demo.manifests import JOBS, text_folder, write_jobs


def test_the_jobs_read_text_that_is_on_this_machine(tmp_path: Path):
    files = write_jobs(tmp_path / "jobs")
    assert [file.stem for file in files] == list(JOBS)
    for file in files:
        job = TrainingJobSpec.model_validate(yaml.safe_load(file.read_text())["spec"])
        folder = Path(job.data.path)
        assert job.data.volume is not None
        assert job.data.volume.host_path is not None
        assert job.data.volume.host_path.path == str(folder) == str(text_folder())
        size = sum(path.stat().st_size for pattern in job.data.include for path in folder.glob(pattern))
        assert size > 1_000_000


def processes_that_name(text: str) -> list[str]:
    """Command lines of processes that have a text in their arguments or their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes()
            if (
                int(folder.name) != os.getpid()
                and text.encode() in arguments + (folder / "environ").read_bytes()
            ):
                found.append(arguments.replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.cluster
def test_an_interrupted_demo_leaves_neither_processes_nor_files(tmp_path: Path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "kronos.local.demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "Starting" in line:
                break
        assert processes_that_name(str(tmp_path))
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    assert demo.returncode == 130
    deadline = time.monotonic() + 5
    while processes_that_name(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_that_name(str(tmp_path)) == []
    assert list(tmp_path.glob("kronos-demo-*")) == []
