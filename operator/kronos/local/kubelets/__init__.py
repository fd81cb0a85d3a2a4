"""A local cluster whose nodes are real: a kubelet and a containerd each, in namespaces of their own.

For tests of what process nodes cannot show: images, cluster DNS, security contexts, evictions, the death of a node.
It needs root on Linux; the control plane and the way to use it are those of ``kronos.local``.
"""
