"""Which nodes a gang runs on: the fabric as a tree, the fit of the whole gang, the ranks in the mesh. Pure."""

from kronos.placement.answer import NoFit, Placement
from kronos.placement.arrange import arranged
from kronos.placement.gang import fits_in, place, place_in, why_not, why_not_in
from kronos.placement.nodes import PODS, Node, Taint
from kronos.placement.reach import reaches
from kronos.placement.request import GangRequest, Traffic
from kronos.placement.room import Room
from kronos.placement.topology import WHOLE, Topology
from kronos.placement.usage import Place, Usage, member_requests, reserve, usage_of

__all__ = [
    "PODS",
    "WHOLE",
    "GangRequest",
    "NoFit",
    "Node",
    "Place",
    "Placement",
    "Room",
    "Taint",
    "Topology",
    "Traffic",
    "Usage",
    "arranged",
    "fits_in",
    "member_requests",
    "place",
    "place_in",
    "reaches",
    "reserve",
    "usage_of",
    "why_not",
    "why_not_in",
]
