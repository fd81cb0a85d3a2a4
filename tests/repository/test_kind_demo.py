"""manifests/kind/demo.sh: what it says when it can't work, and its way through a cluster, with a stub in kind's place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kronos.local import LocalCluster, LocalNode, images
from support.cluster import running_cluster
from support.health import free_port
from support.isolation import require_namespaces
from support.repository import ROOT, tracked_files

DEMO = ROOT / "manifests" / "kind" / "demo.sh"
TOOLS = ("bash", "cat", "cut", "dirname", "grep", "mktemp", "rm", "sed", "sleep", "sort")
SCRIPTS = [path for path in tracked_files() if path.suffix == ".sh"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_finds_nothing(script: Path):
    subprocess.run(["shellcheck", str(script)], check=True, env=os.environ | {"PATH": search_path()})


def search_path() -> str:
    """Programs of the environment first: shellcheck is one of its packages."""
    return f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"


class Stubs:
    """A folder with the few programs that the script finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.calls.touch()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (folder / tool).symlink_to(found)

    def add(self, name: str, script: str) -> None:
        """A program that writes down how it was called, and then does what its script says."""
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.calls}\n{script}\n', encoding="utf-8")
        path.chmod(0o755)

    def run(
        self, *arguments: str, timeout: float = 20.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The script with these programs and no others."""
        return subprocess.run(
            [str(self.folder / "bash"), str(DEMO), *arguments],
            env={"PATH": str(self.folder), "HOME": str(self.folder), "TMPDIR": str(self.folder)}
            | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return Stubs(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "programs", "code", "sentence"),
    [
        pytest.param(["--kepe"], {}, 2, "demo.sh doesn't know --kepe; try --help", id="unknown option"),
        pytest.param(["--name"], {}, 2, "--name needs a name of a-z, 0-9 and '-'", id="no name"),
        pytest.param(["--name", "../x"], {}, 2, "--name needs a name of a-z, 0-9 and '-'", id="odd name"),
        pytest.param([], {}, 3, "kind isn't installed, or not on PATH", id="no kind"),
        pytest.param(["--minikube"], {}, 3, "minikube isn't installed, or not on PATH", id="no minikube"),
        pytest.param([], {"kind": ""}, 3, "kubectl isn't installed, or not on PATH", id="no kubectl"),
        pytest.param(
            [],
            {"kind": "exit 1", "kubectl": ""},
            4,
            "kind finds no container runtime that answers; start docker or podman",
            id="no runtime for kind",
        ),
        pytest.param(
            ["--minikube"],
            {"minikube": "", "kubectl": "", "docker": "exit 1"},
            4,
            "minikube is to use docker, which doesn't answer; start it",
            id="no docker for minikube",
        ),
        pytest.param(
            ["--name", "mine"],
            {"kind": "echo mine", "kubectl": ""},
            5,
            "there is a cluster mine already; delete it, or choose another with --name",
            id="name taken in kind",
        ),
        pytest.param(
            ["--minikube"],
            {"minikube": """echo '{"valid":[{"Name":"kronos-demo"}]}'""", "kubectl": "", "docker": ""},
            5,
            "there is a cluster kronos-demo already; delete it, or choose another with --name",
            id="name taken in minikube",
        ),
    ],
)
def test_what_keeps_it_from_working_is_one_sentence_and_a_code_of_its_own(
    stubs: Stubs, arguments: list[str], programs: dict[str, str], code: int, sentence: str
):
    for name, script in programs.items():
        stubs.add(name, script)
    done = stubs.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{sentence}\n")
    assert "create" not in stubs.calls.read_text(encoding="utf-8")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """What the stub of kind makes: four nodes, which say nothing of racks."""
    require_namespaces(tmp_path_factory.mktemp("isolation"))
    nodes = [LocalNode(f"worker-{number}", capacity={"kronos.dev/accelerator": "4"}) for number in range(4)]
    with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as running:
        yield running


def prepare(stubs: Stubs, cluster: LocalCluster, text: Path) -> dict[str, str]:
    """Let the script find a cluster of processes in kind's place, and text that is on this machine."""
    assert cluster.binaries is not None
    real, port = cluster.binaries / "kubectl", free_port()
    stubs.add("kind", f'[[ $1 != create ]] || cat {cluster.kubeconfig} >"$KUBECONFIG"')
    stubs.add("python", r'printf "kronos/%s:0.1\t/images/%s.tar\n" operator operator trainer trainer')
    changes = f"s|/opt/kronos/torch|{text}|; s|: 8080$|: {port}|; s|port=8080|port={port}|"
    stubs.add(
        "kubectl",
        f'[[ $1 != apply ]] || {{ {real} kustomize "$3" | sed "{changes}" | {real} apply -f -; exit; }}\n'
        f'exec {real} "$@"',
    )
    return {"KRONOS_PYTHON": str(stubs.folder / "python")}


@pytest.mark.cluster
@pytest.mark.training
@pytest.mark.timeout(400)
def test_it_trains_both_jobs_and_deletes_the_cluster(stubs: Stubs, cluster: LocalCluster):
    torch = Path(sysconfig.get_path("purelib")) / "torch"
    done = stubs.run(timeout=360, **prepare(stubs, cluster, torch))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("Deleting the cluster kronos-demo")
    assert "Both jobs are Complete." in done.stdout
    calls = stubs.calls.read_text(encoding="utf-8").splitlines()
    of_kind = [call.partition(" --name")[0] for call in calls if call.startswith("kind ")]
    assert of_kind == [
        *2 * ["kind get clusters"],
        "kind create cluster",
        *2 * ["kind load image-archive"],
        "kind delete cluster",
    ]
    assert not list(stubs.folder.glob("kronos-kind-*"))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_job_that_fails_is_told_and_the_cluster_kept_for_a_look(stubs: Stubs, cluster: LocalCluster):
    done = stubs.run("--keep", timeout=200, **prepare(stubs, cluster, stubs.folder / "nothing"))
    assert done.returncode == 7, done.stdout + done.stderr
    assert "the jobs didn't both complete" in done.stderr
    assert "Delete it: kind delete cluster --name kronos-demo" in done.stdout
    assert "kind delete" not in stubs.calls.read_text(encoding="utf-8")


def test_the_images_are_told_in_the_form_that_the_script_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    archives: Mapping[str, Path] = {image.reference: Path(f"/a/{image.name}.tar") for image in images.IMAGES}
    monkeypatch.setattr(images, "ensure", lambda show: archives)
    assert images.main() == 0
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["kronos/operator:0.1", "/a/operator.tar"],
        ["kronos/trainer:0.1", "/a/trainer.tar"],
    ]
