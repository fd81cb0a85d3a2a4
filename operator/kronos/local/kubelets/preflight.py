"""What a machine must have to run real nodes, asked before anything is built or started."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kronos.local import images
from kronos.local.kubelets import cgroups, programs

COMMANDS = {"ip": "iproute2", "mount": "mount", "umount": "mount", "cp": "coreutils", "unshare": "util-linux"}
BUILD_COMMANDS = {"cc": "gcc", "pkg-config": "pkg-config"}
BUILDERS = ("buildah", "docker")
FILE_SYSTEMS = ("overlay", "tmpfs")
TRIAL = "mount --make-rprivate / && ip link set lo up && ip link add kronos0 type bridge"


@dataclass(frozen=True)
class Machine:
    """The facts that decide; ``has`` finds a command, ``runs`` tells why a command line fails, if it does."""

    system: str
    root: bool
    missing_controllers: Callable[[], list[str]]
    file_systems: Callable[[], str]
    programs_built: bool
    images_built: bool
    has: Callable[[str], bool]
    runs: Callable[[str], str]

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        return cls(
            system=platform.system(),
            root=os.geteuid() == 0,
            missing_controllers=cgroups.missing_controllers,
            file_systems=Path("/proc/filesystems").read_text,
            programs_built=programs.are_built(),
            images_built=images.are_built(),
            has=lambda command: shutil.which(command) is not None,
            runs=_trial,
        )


def _trial(script: str) -> str:
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def missing(machine: Machine) -> Iterator[str]:
    """What is missing, a clause each; nothing when real nodes can run."""
    if machine.system != "Linux":
        yield f"Linux (this is {machine.system})"
        return
    if not machine.root:
        yield "root (run it as root, or in a privileged container)"
    absent = machine.missing_controllers()
    if absent:
        yield f"the control group controllers {', '.join(absent)} below {cgroups.ROOT}"
    known = machine.file_systems().split()
    for name in FILE_SYSTEMS:
        if name not in known:
            yield f"the file system {name} in the kernel (try: modprobe {name})"
    commands = COMMANDS if machine.programs_built else COMMANDS | BUILD_COMMANDS
    wanted = {command: package for command, package in commands.items() if not machine.has(command)}
    for command, package in wanted.items():
        yield f"the command {command} (package {package})"
    if not machine.images_built and not any(map(machine.has, BUILDERS)):
        yield f"a tool that builds images (package {' or '.join(BUILDERS)})"
    builds = not machine.programs_built and "pkg-config" not in wanted
    if builds and machine.runs("pkg-config --exists libseccomp"):
        yield "the headers of libseccomp, to build runc (package libseccomp-dev)"
    if machine.root and not wanted:
        problem = machine.runs(f"unshare --mount --net sh -c '{TRIAL}'")
        if problem:
            yield f"the right to make namespaces with a network bridge ({problem})"
