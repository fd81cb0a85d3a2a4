"""Container images made of a few files, without a build tool."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(
    path: Path, name: str, files: Mapping[str, bytes], entrypoint: Sequence[str], machine: str
) -> None:
    """Write an archive, as ``docker save`` does, of an image with one layer; all its files are executable.

    ``machine`` is the processor as ``uname -m`` names it.
    """
    layer = _tar({name: (content, 0o755) for name, content in files.items()})
    config = {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(_tar({part: (content, 0o644) for part, content in parts.items()}))


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
