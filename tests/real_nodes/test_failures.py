"""What goes wrong on real nodes ends in a status that names the cause in one sentence."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.operators import Object
from support.real_nodes import UNREADABLE, RealForge, claimed

pytestmark = [pytest.mark.timeout(400, func_only=True)]

SECONDS = 30
"""From the kubelet's or the scheduler's report to the status."""


@dataclass(frozen=True)
class Case:
    """A job that fails: its spec, what a pod's status or events say first, and what the job's status says then."""

    sections: dict[str, Any]
    reported: tuple[str, ...]
    sentence: tuple[str, ...]
    phases: tuple[str, ...] = ("Failed",)
    data: str = "data"
    told_by: str = field(default="pods")


CRASH = """
import sys

class Furnace:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "torch":
            raise ZeroDivisionError("the furnace is cold")

sys.meta_path.insert(0, Furnace)
"""
"""Python runs this before the trainer, which then crashes in the middle of an import."""

HOARD = "everything = b'x' * 10**9"
"""What no limit of these tests allows. A limit that only libraries exceed isn't enough: their pages can be read again, so
that a container may crawl for ever instead of being killed."""

CASES = {
    "oom": Case(
        {
            "template": {
                "perAccelerator": {"memory": "64Mi"},
                "env": [{"name": "PYTHONPATH", "value": "/data"}],
            }
        },
        ("OOMKilled",),
        ("member 0 on", "ran out of memory", "raise template.perAccelerator.memory"),
        data="hoarding",
    ),
    "no-image": Case(
        {"template": {"image": "nosuch/image:1"}},
        ("ErrImagePull",),
        ("member 0 on", "its image nosuch/image:1 can't be pulled"),
        phases=("Starting",),
    ),
    "too-big": Case(
        {"template": {"perAccelerator": {"cpu": "100"}}}, (), ("cpu",), phases=("Queued",), told_by="nobody"
    ),
    "crash": Case(
        {"template": {"env": [{"name": "PYTHONPATH", "value": "/data"}]}},
        ("ZeroDivisionError",),
        ("member 0 on", "ZeroDivisionError: the furnace is cold"),
        data="crashing",
    ),
    "other-processor": Case(
        {"template": {"image": UNREADABLE}},
        ("exec format error",),
        ("member 0 on", "can't execute its program", "exec format error"),
    ),
    "no-claim": Case(
        {"data": {"volume": claimed("nowhere")}},
        ('persistentvolumeclaim \\"nowhere\\" not found',),
        ("PersistentVolumeClaim nowhere", "doesn't exist"),
        phases=("Starting", "Restarting"),
    ),
    "no-folder": Case(
        {"data": {"volume": claimed("gone")}},
        ("FailedMount",),
        ("member 0 on", "volume", "can't be mounted"),
        phases=("Starting",),
        told_by="events",
    ),
}


def about(forge: RealForge, kind: str, job: str) -> str:
    """What pods or events of a job say, as text."""
    items = forge.list(kind)
    own = [item for item in items if name_of(item, kind).startswith(f"{job}-")]
    return json.dumps(own)


def name_of(item: Object, kind: str) -> str:
    """The name of a pod, or of what an event is about."""
    return str(item["involvedObject"]["name"] if kind == "events" else item["metadata"]["name"])


@pytest.fixture
def forge_of_failures(forge: RealForge, tmp_path: Path) -> RealForge:
    """A namespace with claims on a folder that isn't there, and on some that make Python crash or take all memory."""
    for name, code in (("crashing", CRASH), ("hoarding", HOARD)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
        forge.claim(name, folder)
    forge.claim("gone", tmp_path / "gone")
    return forge


def test_every_failure_names_its_cause_in_one_sentence_within_thirty_seconds_of_its_report(
    forge_of_failures: RealForge,
):
    forge = forge_of_failures
    common = {"restart": {"backoffLimit": 0}}
    forge.apply(
        *(
            forge.manifest(name, **{"data": {"volume": claimed(case.data)}, **common, **case.sections})
            for name, case in CASES.items()
        )
    )
    reported: dict[str, float] = {}
    explained: dict[str, float] = {}
    deadline = time.monotonic() + 150
    while len(explained) < len(CASES):
        now = time.monotonic()
        for name, case in CASES.items():
            if name not in reported:
                said = about(forge, case.told_by, name) if case.told_by != "nobody" else ""
                if all(word in said for word in case.reported):
                    reported[name] = now
            status = forge.status(name)
            reason = status.get("reason", "")
            fits = status.get("phase") in case.phases and all(word in reason for word in case.sentence)
            if name not in explained and fits:
                explained[name] = now
                print(f"{name}: {status['phase']}: {reason}")
                assert "\n" not in reason
        late = [name for name in reported if name not in explained and now - reported[name] > SECONDS]
        assert not late, {name: forge.status(name) for name in late}
        assert now < deadline, {
            name: (forge.status(name), name in reported) for name in CASES if name not in explained
        }
        time.sleep(0.3)
    for name in CASES:
        print(f"{name}: {explained[name] - reported.get(name, explained[name]):.1f} s after its report")
