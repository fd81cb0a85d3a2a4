"""Which fabric a job is looked at on, and how large the domains of its levels are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from kronos.api.fabric import FabricSpec
from kronos.cli.complaints import InputError
from kronos.cli.manifests import FABRIC, Fabric, Job
from kronos.strategy.communication import Network

EXAMPLE = "manifests/examples/fabric.yaml"


def fabric_for(job: Job, fabrics: Mapping[str, Fabric]) -> Fabric:
    """The fabric that the job names, or the only one; InputError when that leaves none."""
    wanted = job.spec.placement.fabric
    if wanted in fabrics:
        return fabrics[wanted]
    if len(fabrics) == 1:
        return next(iter(fabrics.values()))
    if not fabrics:
        raise InputError(
            f"no {FABRIC} was given, which describes the network and the accelerators; add one with --fabric "
            f"({EXAMPLE} is one to start from)"
        )
    raise InputError(
        f"{job.name}, spec.placement.fabric: is {wanted}, and the fabrics that were given are "
        f"{', '.join(sorted(fabrics))}; name one of those"
    )


def level_complaints(job: Job, fabric: Fabric) -> Iterator[str]:
    """A sentence for each level that the job names and the fabric lacks."""
    known = fabric.spec.level_names
    for field, level in job.spec.placement.named_levels:
        if level not in known:
            yield (
                f"{job.name}, spec.placement.{field}: is {level}, a level that the fabric {fabric.name} lacks; "
                f"change it to one of {', '.join(known)}"
            )


def parse_slots(options: Iterable[str]) -> dict[str, int]:
    """Sizes by level from options such as `node=8,rack=64`; InputError where one isn't such."""
    sizes: dict[str, int] = {}
    for item in (item.strip() for option in options for item in option.split(",")):
        level, _, size = item.partition("=")
        if not (level and size.isascii() and size.isdigit() and len(size) < 10 and int(size) > 0):
            raise InputError(
                f"--slots {item}: is no level with a number of accelerators from 1 to 999999999; write for example "
                "node=8,rack=64"
            )
        if level in sizes:
            raise InputError(f"--slots {item}: {level} is given twice; drop one")
        sizes[level] = int(size)
    return sizes


def domain_sizes(fabric: FabricSpec, sizes: Mapping[str, int]) -> dict[str, int]:
    """Accelerators in a domain of each level, the narrowest first, as the search takes them to be.

    InputError when `sizes` names a level that the fabric lacks, or makes one smaller than a level inside it.
    """
    try:
        network = Network.of(fabric, sizes)
    except ValueError as error:
        raise InputError(f"--slots: {error}") from None
    found = {name: slots for name, (slots, _) in zip(network.names, network.domains, strict=True)}
    for (inner, least), (name, slots) in pairwise(found.items()):
        if sizes.get(name, slots) < slots:
            raise InputError(
                f"--slots {name}={sizes[name]}: a {name} can't have fewer accelerators than a {inner} inside it, {least}; "
                f"raise it to {least}, or lower {inner}"
            )
    return found
