"""The example jobs, with the data's path replaced by text that is on this machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import yaml

from kronos.local.install import ROOT

EXAMPLES = ROOT / "manifests" / "examples"
JOBS = ("breeder", "burner")
NAMESPACE = "forge"


def text_folder() -> Path:
    """The sources and documentation that come with Python: real text that is on every machine that runs this."""
    return Path(sysconfig.get_path("stdlib"))


def with_text(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A job that reads its data from a folder of this machine, mounted at the same path in its pods."""
    data = {**job["spec"]["data"], "path": str(folder), "volume": {"hostPath": {"path": str(folder)}}}
    return {**job, "spec": {**job["spec"], "data": data}}


def write_jobs(target: Path) -> list[Path]:
    """Write the demo's jobs as manifests below `target`."""
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in JOBS:
        job = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
        path = target / f"{name}.yaml"
        path.write_text(yaml.safe_dump(with_text(job, text_folder()), sort_keys=False), encoding="utf-8")
        paths.append(path)
    return paths
