"""One cluster of real nodes for all tests here, with Kronos installed as users install it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kronos.local import LocalCluster, default_topology, images
from kronos.local.kubelets import preflight
from kronos.local.kubelets.archive import write_image
from kronos.local.kubelets.cluster import KubeletCluster
from support.real_nodes import NODE_GRACE_SECONDS, UNREADABLE, RealForge, install_operator

_numbers = count(1)


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeletCluster]:
    """Four nodes in two racks; skipped where the machine can't run them, with what it lacks."""
    lacking = list(preflight.missing(preflight.Machine.this()))
    if lacking:
        pytest.skip(f"real nodes cannot run here; missing: {'; '.join(lacking)}")
    unreadable = tmp_path_factory.mktemp("images") / "unreadable.tar"
    files = {"usr/local/bin/python": b"\x00no program\n"}
    write_image(unreadable, UNREADABLE, files, ["/usr/local/bin/python"], os.uname().machine)
    # The same file in every run, so that it is imported once.
    os.utime(unreadable, (0, 0))
    archives = {**images.ensure(print), UNREADABLE: unreadable}
    state = tmp_path_factory.mktemp("nodes")
    with KubeletCluster(
        state, default_topology(), archives, node_grace_seconds=NODE_GRACE_SECONDS, progress=print
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def installed(bare_cluster: KubeletCluster) -> Iterator[KubeletCluster]:
    """The cluster with the operator running in it; its log must hold no error in the end."""
    install_operator(bare_cluster)
    yield bare_cluster
    log = bare_cluster.kubectl("-n", "kronos-system", "logs", "deployment/kronos", "--tail=-1")
    assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little text to train on, which the trainer's user can read."""
    folder = tmp_path_factory.mktemp("text")
    for index in range(4):
        words = " ".join(f"the {number} fox jumps over the lazy dog" for number in range(200))
        (folder / f"part-{index}.txt").write_text(words, encoding="utf-8")
    return opened(folder)


@pytest.fixture
def forge(installed: LocalCluster, text: Path, tmp_path: Path) -> Iterator[RealForge]:
    """A namespace for one test, which goes with all that is in it."""
    place = RealForge(installed, f"forge-{next(_numbers)}", text, opened(tmp_path) / "checkpoints")
    yield place
    place.close()


def opened(folder: Path) -> Path:
    """Let every user walk to a folder: those of tests are their owner's alone."""
    for path in (folder, *folder.parents):
        if path.stat().st_mode & 0o777 == 0o700:
            path.chmod(0o755)
    return folder
