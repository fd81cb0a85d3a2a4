"""Real nodes that share a machine keep out of each other's way."""

from __future__ import annotations

import pytest

from kronos.local import default_topology
from kronos.local.kubelets.cluster import KubeletCluster

# The cluster, which the first test makes and which may need images first, doesn't count.
pytestmark = [pytest.mark.timeout(60, func_only=True)]


def test_each_kubelet_has_the_fixed_socket_of_device_plugins_to_itself(bare_cluster: KubeletCluster):
    folders = list((bare_cluster.state / "nodes").iterdir())
    sockets = [folder / "fixed" / "device-plugins" / "kubelet.sock" for folder in folders]
    assert len(sockets) == len(default_topology())
    assert all(socket.is_socket() for socket in sockets)
