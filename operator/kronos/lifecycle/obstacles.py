"""What keeps a container from starting, or ended it before it began, in one sentence for people.

The kubelet, the container runtime and the scheduler say these things in words of their own, with the cause at the end
of a chain of what failed because of it. The words that are recognised here are those of kubelet 1.36, containerd 2.2
and runc 1.3; others are passed on as they are.
"""

from __future__ import annotations

import re

_LONGEST = 300
_BACK_OFF = re.compile(
    r'^Back-off pulling image "(?P<image>[^"]*)"(: (ErrImagePull: )?(?P<cause>.*))?$', re.DOTALL
)
_PULL = re.compile(r'^failed to pull and unpack image "(?P<image>[^"]*)": (?P<cause>.*)$', re.DOTALL)
_MOUNT = re.compile(r'^MountVolume\.\w+ failed for volume "(?P<volume>[^"]*)" ?: (?P<cause>.*)$', re.DOTALL)
_START = re.compile(
    r"^failed to (create|start) containerd task: .*unable to start container process: ", re.DOTALL
)
_NO_CLAIM = re.compile(r'persistentvolumeclaim "(?P<claim>[^"]*)" not found')
_SANDBOX = "Failed to create pod sandbox: "
_FORMAT = "exec format error"
_NOT_FOUND = "executable file not found"


def why_waiting(reason: str, message: str) -> str:
    """Why a container waits, from the reason and the message of its state."""
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        return _pulling(message)
    if reason == "ErrImageNeverPull":
        return "its image isn't on the node, and its pull policy forbids to pull it"
    if reason == "InvalidImageName":
        return f"the name of its image isn't valid: {_short(message)}"
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return f"its container can't be made: {_short(_START.sub('', message))}"
    return f"{reason}: {_short(message)}" if message else reason


def _pulling(message: str) -> str:
    """The same sentence while the kubelet tries and while it pauses, so that status keeps still."""
    if found := _BACK_OFF.match(message):
        image, cause = found["image"], found["cause"] or ""
        if inner := _PULL.match(cause):
            cause = inner["cause"]
    elif found := _PULL.match(message):
        image, cause = found["image"], found["cause"]
    else:
        return f"its image can't be pulled: {_short(message)}"
    image = image.removeprefix("docker.io/").removeprefix("library/")
    return f"its image {image} can't be pulled{f': {_short(cause)}' if cause else ''}"


def why_not_ready(reason: str, message: str) -> str:
    """What keeps a pod's containers from being made, from the reason and the message of a warning about the pod."""
    if found := _MOUNT.match(message):
        return f"its volume {found['volume']} can't be mounted: {_short(found['cause'])}"
    if message.startswith(_SANDBOX):
        cause = message.partition("unable to start container process: ")[2]
        return f"its sandbox can't be made: {_short(cause or message.removeprefix(_SANDBOX))}"
    return f"{reason}: {_short(message)}"


def why_not_bound(message: str) -> str:
    """Why the scheduler can't bind a pod to the node that was chosen for it, from its message."""
    if found := _NO_CLAIM.search(message):
        return f"needs the PersistentVolumeClaim {found['claim']}, which doesn't exist in the job's namespace"
    if "unbound immediate PersistentVolumeClaims" in message:
        return "needs a PersistentVolumeClaim that isn't bound to a volume yet"
    return f"lost its place: {_short(message)}"


def why_never_began(reason: str, message: str) -> str:
    """Why a container ended before its program began; empty when it ended in another way."""
    if _FORMAT in message:
        said = _short(_last_line(message))
        return f"the node can't execute its program, which may be for another processor ({said})"
    if reason == "StartError":
        return f"its program can't be started: {_short(_cause(message))}"
    return ""


def never_begins(reason: str, message: str) -> bool:
    """Whether a container that ended like this would do so again on any node."""
    return _FORMAT in message or (reason == "StartError" and _NOT_FOUND in message)


def _cause(message: str) -> str:
    return _START.sub("", message).removeprefix("error during container init: ")


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _short(text: str) -> str:
    """The first line that says something; of long ones the beginning and the end, where the cause stands."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(first) <= _LONGEST:
        return first
    half = (_LONGEST - 5) // 2
    return f"{first[:half]} ... {first[-half:]}"
