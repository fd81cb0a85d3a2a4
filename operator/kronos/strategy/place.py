"""What a strategy costs in one certain place, rather than in the best that the network has."""

from __future__ import annotations

from collections.abc import Mapping

from kronos.api.fabric import FabricSpec
from kronos.api.job import TrainingJobSpec
from kronos.strategy.arithmetic import Arithmetic
from kronos.strategy.communication import AxisRoutes, Network, Route
from kronos.strategy.layout import Layout, Workload
from kronos.strategy.timing import StepModel, StepTime

Reaches = Mapping[str, Mapping[str, int]]
"""For each axis (tensor, pipeline, sharded_data, data) and level name, how many ranks of one of its groups, at the worst, are
inside one domain. A level that isn't told joins no more ranks than the next narrower one."""


def time_in_place(
    spec: TrainingJobSpec,
    fabric: FabricSpec,
    slots_per_domain: Mapping[str, int] | None,
    layout: Layout,
    reaches: Reaches,
) -> StepTime:
    """Predict a step of a layout where its groups lie as `reaches` says.

    ValueError when the fabric doesn't describe the job's accelerator; the rest as for `search`.
    """
    accelerator = fabric.accelerator(spec.accelerators.resource)
    if accelerator is None:
        raise ValueError(f"the fabric does not describe {spec.accelerators.resource}")
    network = Network.of(fabric, slots_per_domain)
    model = StepModel(
        Arithmetic(Workload.of(spec, accelerator)),
        layout.degrees,
        layout.stage_layers,
        network,
        layout.sequence_parallel,
    )
    return model.time(layout, _routes(network, layout, reaches))


def _routes(network: Network, layout: Layout, reaches: Reaches) -> AxisRoutes:
    degrees = layout.degrees

    def inside(axis: str, degree: int) -> list[int]:
        counts, joined = reaches.get(axis, {}), 1
        found = []
        for name in network.names:
            joined = max(joined, min(degree, counts.get(name, joined)))
            found.append(joined)
        return found

    def route(axis: str, degree: int) -> Route:
        return network.route_over(degree, inside(axis, degree))

    return AxisRoutes(
        tensor=route("tensor", degrees.tensor_parallel),
        context=route("context", degrees.context_parallel),
        pipeline=route("pipeline", degrees.pipeline_parallel),
        sharded_data=route("sharded_data", degrees.sharded_data_parallel),
        data=route("data", degrees.data_parallel),
        expert=route("sharded_data", degrees.expert_parallel),
    )
