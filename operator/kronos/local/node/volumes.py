"""Volumes: files and folders of the host that stand for what a pod mounts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kronos.local.node.environment import ConfigError, Sources, expand, field_value, resource_value
from kronos.local.node.rootfs import Mount

Object = Mapping[str, Any]


class Lookup(Protocol):
    """What a node asks the API server for when it prepares volumes."""

    async def token(self, wanted: Object) -> str:
        """A token of the pod's service account."""
        ...

    async def claimed_volume(self, claim: str) -> Object:
        """The specification of the persistent volume that is bound to a claim."""
        ...


# The node looks after these itself, so containers may not change them.
ALWAYS_READ_ONLY = ("configMap", "secret", "downwardAPI", "projected")


def volume_references(pod: Object) -> set[tuple[str, str]]:
    """The ConfigMaps and Secrets that a pod's volumes need."""
    found = set()
    for volume in pod["spec"].get("volumes") or ():
        for source in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
            if config := source.get("configMap"):
                found.add(("ConfigMap", config["name"]))
            if secret := source.get("secret"):
                found.add(("Secret", secret.get("secretName") or secret.get("name")))
    return found


async def prepare(pod: Object, folder: Path, sources: Sources, lookup: Lookup) -> dict[str, Path]:
    """Create every volume of a pod below the folder; returns where each one lies."""
    return {
        volume["name"]: await _prepare(pod, volume, folder / volume["name"], sources, lookup)
        for volume in pod["spec"].get("volumes") or ()
    }


async def _prepare(pod: Object, volume: Object, folder: Path, sources: Sources, lookup: Lookup) -> Path:
    if host_path := volume.get("hostPath"):
        return _host_path(Path(host_path["path"]), host_path.get("type") or "")
    if claim := volume.get("persistentVolumeClaim"):
        return _persistent(claim["claimName"], await lookup.claimed_volume(claim["claimName"]))
    if "emptyDir" in volume:
        return _empty(folder)
    if "projected" in volume:
        projected = volume["projected"]
        files: dict[str, tuple[bytes, int | None]] = {}
        for source in projected.get("sources") or ():
            files |= await _files(pod, source, sources, lookup)
        _write(folder, files, projected.get("defaultMode"))
        return folder
    kind = next((key for key in volume if key in ALWAYS_READ_ONLY), None)
    if kind is None:
        unknown = next((key for key in volume if key != "name"), "unknown")
        raise ConfigError(
            f"volume {volume['name']}: local nodes do not support {unknown}; use a hostPath volume"
        )
    _write(folder, await _files(pod, volume, sources, lookup), volume[kind].get("defaultMode"))
    return folder


async def _files(
    pod: Object, source: Object, sources: Sources, lookup: Lookup
) -> dict[str, tuple[bytes, int | None]]:
    """The relative paths of one source, each with content and mode."""
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if wanted := source.get(key):
            name = wanted.get("secretName") or wanted["name"]
            found = sources.object(kind, name, bool(wanted.get("optional")))
            return _selected(found, wanted, f'{kind.lower()} "{name}"')
    if downward := source.get("downwardAPI"):
        return {
            item["path"]: (_downward(pod, item, sources).encode(), item.get("mode"))
            for item in downward.get("items") or ()
        }
    if wanted := source.get("serviceAccountToken"):
        return {wanted["path"]: ((await lookup.token(wanted)).encode(), 0o600)}
    raise ConfigError(f"local nodes do not know the volume source {next(iter(source), 'nothing')}")


def _selected(found: Mapping[str, bytes], wanted: Object, label: str) -> dict[str, tuple[bytes, int | None]]:
    items = wanted.get("items")
    if not items:
        return {key: (content, None) for key, content in found.items()}
    missing = [item["key"] for item in items if item["key"] not in found]
    if missing and not wanted.get("optional"):
        raise ConfigError(f"{label} has no key {missing[0]}")
    return {item["path"]: (found[item["key"]], item.get("mode")) for item in items if item["key"] in found}


def _downward(pod: Object, item: Object, sources: Sources) -> str:
    if reference := item.get("fieldRef"):
        return field_value(pod, reference["fieldPath"], sources)
    reference = item["resourceFieldRef"]
    containers = pod["spec"]["containers"]
    container = next(each for each in containers if each["name"] == reference["containerName"])
    return resource_value(pod, container, reference, sources)


def _persistent(claim: str, volume: Object) -> Path:
    for kind in ("hostPath", "local"):
        if place := volume.get(kind):
            return _host_path(Path(place["path"]), place.get("type") or "")
    raise ConfigError(
        f"claim {claim} is bound to a volume that is not on this machine; use hostPath or local"
    )


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return folder


def _write(folder: Path, files: Mapping[str, tuple[bytes, int | None]], default_mode: int | None) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, (content, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode if mode is not None else default_mode if default_mode is not None else 0o644)


def _host_path(path: Path, kind: str) -> Path:
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    elif kind == "" and not path.exists():
        # As container runtimes do for a path without a type.
        path.mkdir(parents=True)
    if kind.startswith("Directory") and not path.is_dir():
        raise ConfigError(f"hostPath {path} is not a directory")
    if kind.startswith("File") and not path.is_file():
        raise ConfigError(f"hostPath {path} is not a file")
    return path


def mounts(
    container: Object, pod: Object, volumes: Mapping[str, Path], env: Mapping[str, str]
) -> list[Mount]:
    """Where a container sees which volumes."""
    kinds = {volume["name"]: set(volume) for volume in pod["spec"].get("volumes") or ()}
    result = []
    for mount in container.get("volumeMounts") or ():
        source = volumes[mount["name"]]
        sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "", env)
        if sub_path:
            if Path(sub_path).is_absolute() or ".." in Path(sub_path).parts:
                raise ConfigError(f"subPath {sub_path} must be relative and stay inside the volume")
            source = source / sub_path
            if not source.exists():
                source.mkdir(parents=True)
        read_only = bool(mount.get("readOnly")) or bool(kinds[mount["name"]] & set(ALWAYS_READ_ONLY))
        result.append(Mount(source, mount["mountPath"], read_only))
    return result
