"""What kubelets, runtimes and schedulers say, and the sentences that people read."""

from __future__ import annotations

import pytest

from kronos.lifecycle.obstacles import (
    never_begins,
    why_never_began,
    why_not_bound,
    why_not_ready,
    why_waiting,
)

UNREACHABLE = "failed to resolve image: dial tcp: lookup registry.example: network is unreachable"
PULL = f'failed to pull and unpack image "docker.io/nosuch/image:1": {UNREACHABLE}'
RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: "
)
NOT_FOUND = f'{RUNC}error during container init: exec: "python": executable file not found in $PATH'
OOM_SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to start sandbox "
    f'"d470ba": {RUNC}container init was OOM-killed (memory limit too low?)'
)


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        ("ErrImagePull", PULL, f"its image nosuch/image:1 can't be pulled: {UNREACHABLE}"),
        (
            "ImagePullBackOff",
            f'Back-off pulling image "nosuch/image:1": ErrImagePull: {PULL}',
            f"its image nosuch/image:1 can't be pulled: {UNREACHABLE}",
        ),
        (
            "ImagePullBackOff",
            'Back-off pulling image "nosuch/image:1"',
            "its image nosuch/image:1 can't be pulled",
        ),
        ("ErrImagePull", "no such image", "its image can't be pulled: no such image"),
        (
            "ErrImageNeverPull",
            'Container image "x" is not present with pull policy of Never',
            "its image isn't on the node, and its pull policy forbids to pull it",
        ),
        (
            "CreateContainerConfigError",
            'configmap "nope" not found',
            'its container can\'t be made: configmap "nope" not found',
        ),
        ("Odd", "words", "Odd: words"),
        ("Odd", "", "Odd"),
    ],
)
def test_a_container_that_waits_has_one_sentence(reason, message, sentence):
    assert why_waiting(reason, message) == sentence


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        (
            "FailedMount",
            'MountVolume.SetUp failed for volume "data" : configmap "nope" not found',
            'its volume data can\'t be mounted: configmap "nope" not found',
        ),
        (
            "FailedMount",
            'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32\nMounting command: mount\n',
            "its volume data can't be mounted: mount failed: exit status 32",
        ),
        (
            "FailedCreatePodSandBox",
            OOM_SANDBOX,
            "its sandbox can't be made: container init was OOM-killed (memory limit too low?)",
        ),
        (
            "FailedCreatePodSandBox",
            "Failed to create pod sandbox: no network",
            "its sandbox can't be made: no network",
        ),
        ("FailedAttachVolume", "disk is elsewhere", "FailedAttachVolume: disk is elsewhere"),
    ],
)
def test_a_warning_about_a_pod_has_one_sentence(reason, message, sentence):
    assert why_not_ready(reason, message) == sentence


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            '0/1 nodes are available: persistentvolumeclaim "nope" not found. not found',
            "needs the PersistentVolumeClaim nope, which doesn't exist in the job's namespace",
        ),
        (
            "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "needs a PersistentVolumeClaim that isn't bound to a volume yet",
        ),
        (
            "0/4 nodes are available: 4 Insufficient cpu.",
            "lost its place: 0/4 nodes are available: 4 Insufficient cpu.",
        ),
    ],
)
def test_a_pod_that_is_not_bound_has_one_sentence(message, sentence):
    assert why_not_bound(message) == sentence


@pytest.mark.parametrize(
    ("reason", "message", "sentence", "hopeless"),
    [
        (
            "Error",
            "exec /usr/local/bin/python: exec format error",
            "the node can't execute its program, which may be for another processor "
            "(exec /usr/local/bin/python: exec format error)",
            True,
        ),
        (
            "StartError",
            NOT_FOUND,
            'its program can\'t be started: exec: "python": executable file not found in $PATH',
            True,
        ),
        ("StartError", f"{RUNC}no space left", "its program can't be started: no space left", False),
        ("Error", "Traceback", "", False),
    ],
)
def test_a_program_that_never_began_says_why_and_whether_it_ever_will(reason, message, sentence, hopeless):
    assert why_never_began(reason, message) == sentence
    assert never_begins(reason, message) is hopeless


def test_long_messages_keep_their_beginning_and_their_end():
    said = why_waiting("ErrImagePull", f"{'a' * 400} the cause")
    assert len(said) < 340
    assert said.endswith("the cause")
