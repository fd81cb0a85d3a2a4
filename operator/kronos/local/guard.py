"""The small program that every long-running child process is started under.

It is run as a script (``python -S guard.py FD``), never imported by the rest of the package, and uses the
standard library alone so that it starts within a few milliseconds. It does three things:

* It kills the program and *every* descendant, daemonised ones included, when its owner dies in any way.
  The owner is watched through a pidfd, so it does not matter which thread started the guard.
* It forwards signals, reaps orphans and reports how the program started and ended.
* For containers it first moves into new namespaces and builds the root file system it was told to build.

The specification is JSON read from the file descriptor given as the only argument; see
``kronos.local.processes`` for the side that writes it.
"""

# pathlib would double the time that this program takes to start.
# ruff: noqa: PTH103, PTH116, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import sys
from collections.abc import Callable
from typing import Any, NoReturn

KILL_ALL = signal.SIGRTMIN
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
HANDLED = {KILL_ALL, signal.SIGCHLD, *FORWARDED}

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x4000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME = 1, 2, 4, 8, 1024
MS_NODIRATIME, MS_RELATIME, MS_REMOUNT, MS_BIND = 2048, 1 << 21, 32, 4096
MS_REC, MS_UNBINDABLE, MS_PRIVATE = 16384, 1 << 17, 1 << 18
LOCKED_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

libc = ctypes.CDLL(None, use_errno=True)


class ProgramError(Exception):
    """The program itself cannot be executed."""


def checked(result: int, what: str) -> None:
    """Raise OSError with the C library's errno when a call has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount, bind or change a mount."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    checked(libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces, mapping its own user and group onto themselves."""
    user, group = os.geteuid(), os.getegid()
    if user == 0 and libc.unshare(flags) == 0:
        return
    checked(libc.unshare(flags | CLONE_NEWUSER), "unshare")
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


class RootBuilder:
    """Carries out the steps that ``kronos.local.node.rootfs`` planned, below a fresh tmpfs."""

    def __init__(self, directory: str) -> None:
        """Remember the empty folder that becomes the new root."""
        self.directory = directory

    def build(self, steps: list[list[Any]]) -> None:
        """Mount everything and make the result the root of this process."""
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", self.directory, "tmpfs", 0, "mode=755")
        # Unbindable, or binding the folder that holds this mount would copy the half-built root into itself.
        mount("none", self.directory, None, MS_UNBINDABLE)
        for kind, *arguments in steps:
            getattr(self, f"step_{kind}")(*arguments)
        os.chdir(self.directory)
        checked(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
        # The old root now lies on top of the new one; detaching it leaves the new one alone.
        checked(libc.umount2(b".", MNT_DETACH), "umount old root")
        os.chdir("/")

    def step_directory(self, path: str) -> None:
        """Make a folder and its parents."""
        os.makedirs(self.directory + path, exist_ok=True)

    def step_tmpfs(self, path: str, mode: str) -> None:
        """Mount an empty tmpfs."""
        self.step_directory(path)
        mount("tmpfs", self.directory + path, "tmpfs", 0, f"mode={mode}")

    def step_symlink(self, path: str, target: str) -> None:
        """Recreate a symbolic link of the host."""
        os.symlink(target, self.directory + path)

    def step_host(self, path: str) -> None:
        """Show one entry of the host; what cannot be shown is left out."""
        with contextlib.suppress(OSError):
            self.step_bind(path, path, False)

    def step_proc(self) -> None:
        """Mount a proc that matches the new PID namespace, or the host's where that is refused."""
        self.step_directory("/proc")
        try:
            mount("proc", self.directory + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        except OSError:
            self.step_host("/proc")

    def step_bind(self, source: str, path: str, read_only: bool) -> None:
        """Bind a file or folder of the host."""
        target = self.directory + path
        if not os.path.lexists(target):
            if stat.S_ISDIR(os.stat(source).st_mode):
                os.makedirs(target)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(source, target, None, MS_BIND | MS_REC)
        if read_only:
            # Flags inherited from the host are locked in a user namespace and must be repeated.
            kept = os.statvfs(target).f_flag & LOCKED_FLAGS
            mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, 155)


class Report:
    """The pipe on which the owner learns how the program started and ended."""

    def __init__(self, descriptor: int | None) -> None:
        """Write to the descriptor, or nowhere."""
        self.descriptor = descriptor

    def send(self, **fields: object) -> None:
        """Write one line of JSON; an owner that no longer listens is no error."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self.descriptor, (json.dumps(fields) + "\n").encode())


def close_report(report: Report) -> None:
    """Close this process's copy, so that the owner sees the end when the last holder is gone."""
    if report.descriptor is not None:
        os.close(report.descriptor)
        report.descriptor = None


def become(spec: dict[str, Any], report: Report) -> NoReturn:
    """Turn this process into the program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if spec["cwd"]:
        os.makedirs(spec["cwd"], exist_ok=True)
        os.chdir(spec["cwd"])
    close_report(report)
    program = spec["argv"][0]
    try:
        os.execvpe(program, spec["argv"], spec["env"])
    except FileNotFoundError:
        raise ProgramError(f'exec: "{program}": executable file not found') from None
    except PermissionError:
        raise ProgramError(f'exec: "{program}": permission denied') from None


def start(spec: dict[str, Any], report: Report) -> int | None:
    """Fork the program; None when it could not be started, which has then been reported."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            os.setsid()
            become(spec, report)
        except BaseException as error:
            # The pipe closes by itself on success, so anything in it is a failure.
            os.write(write_end, describe(error).encode())
        os._exit(128)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        problem = pipe.read().decode()
    if problem:
        os.waitpid(child, 0)
        report.send(event="failed", message=problem)
        return None
    report.send(event="started")
    return child


def describe(error: BaseException) -> str:
    """One sentence on why the program could not be started."""
    return str(error) if isinstance(error, ProgramError) else f"{type(error).__name__}: {error}"


class Watch:
    """Waits for signals, for the end of one child, and for the owner's death."""

    def __init__(self, owner: int) -> None:
        """Watch a descriptor that becomes readable, or closed, when the owner dies."""
        self.read_end, write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self.owner: int | None = owner
        self.poll = select.poll()
        self.poll.register(self.read_end, select.POLLIN)
        self.poll.register(owner, select.POLLIN)

    def until_exit(self, child: int, kill: Callable[[], object]) -> int:
        """Forward signals until the child has ended; returns its wait status."""
        while True:
            received = set()
            for descriptor, _ in self.poll.poll():
                if descriptor == self.owner:
                    self.poll.unregister(descriptor)
                    kill()
                else:
                    received = set(os.read(self.read_end, 512))
            if KILL_ALL in received:
                kill()
            for number in FORWARDED:
                if number in received:
                    os.kill(child, number)
            status = reap(child)
            if status is not None:
                return status


def reap(child: int) -> int | None:
    """Collect every ended child; the status of the one that matters, if it was among them."""
    result = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if pid == 0:
            return result
        if pid == child:
            result = status


def children() -> list[int]:
    """The direct children of this process."""
    mine, found = os.getpid(), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == mine:
                    found.append(int(entry))
    return found


def kill_children() -> None:
    """Send SIGKILL to the direct children."""
    for pid in children():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill until nothing is left: orphans come to this process, which is their subreaper."""
    while True:
        kill_children()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def finish(status: int, report: Report) -> None:
    """Report how the program ended."""
    code = os.waitstatus_to_exitcode(status)
    report.send(event="exited", code=code if code >= 0 else 128 - code, signal=max(-code, 0))


def run_plain(spec: dict[str, Any], report: Report, owner: int) -> None:
    """Run the program as a child in the namespaces of the host."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = start(spec, report)
    if child is None:
        return
    status = Watch(owner).until_exit(child, kill_children)
    kill_descendants()
    finish(status, report)


def run_isolated(spec: dict[str, Any], report: Report, owner: int) -> None:
    """Run the program below an init process of its own PID namespace, which takes all with it."""
    try:
        unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS)
    except OSError as error:
        report.send(event="failed", message=str(error))
        return
    # Nothing is ever written to this pipe: its end tells init that this process is gone.
    leash, held = os.pipe()
    init = os.fork()
    if init == 0:
        code = 1
        try:
            os.close(held)
            isolated = spec["isolation"]
            checked(libc.sethostname(isolated["hostname"].encode(), len(isolated["hostname"])), "hostname")
            RootBuilder(isolated["root"]).build(isolated["steps"])
            child = start(spec, report)
            if child is not None:
                finish(Watch(leash).until_exit(child, lambda: os._exit(137)), report)
            code = 0
        except BaseException as error:
            report.send(event="failed", message=describe(error))
        os._exit(code)
    close_report(report)

    def kill() -> None:
        os.kill(init, signal.SIGKILL)

    Watch(owner).until_exit(init, kill)


def main() -> None:
    """Read the specification, run the program, and end when nothing of it is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        spec = json.load(file)
    report = Report(spec["report"])
    try:
        owner = os.pidfd_open(spec["owner"])
    except ProcessLookupError:
        return
    if os.getppid() != spec["owner"]:
        return
    if spec["isolation"]:
        run_isolated(spec, report, owner)
    else:
        run_plain(spec, report, owner)


if __name__ == "__main__":
    main()
