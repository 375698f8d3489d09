"""A real Kubernetes of a few nodes on this one machine, for tests; made and taken away by root.

In `tests/`: `python -m cluster_tool up|status|down`. A node is a network namespace and a process
namespace with containerd, a kubelet and kube-proxy in it, so it can be unplugged like a machine.
"""
