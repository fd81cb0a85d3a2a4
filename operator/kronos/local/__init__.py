"""A real Kubernetes control plane on one machine, with nodes that run pods as processes of this user.

This is a runtime for development and tests on Linux. In production a cluster's own kubelets do all this.
"""

from kronos.local.cluster import ClusterError, LocalCluster
from kronos.local.control import ExtraProcess
from kronos.local.topology import LocalNode, default_topology

__all__ = ["ClusterError", "ExtraProcess", "LocalCluster", "LocalNode", "default_topology"]
