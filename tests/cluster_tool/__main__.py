"""`python -m cluster_tool up|status|down`, in `tests/`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from cluster_tool import cluster, network
from cluster_tool.cluster import Cluster
from cluster_tool.readiness import is_ready


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster_tool", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="its work folder; by default that of the running cluster"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start it; prints the path of its kubeconfig")
    up.add_argument("--nodes", type=int, default=3)
    commands.add_parser("status", help="show what is running, and which nodes are ready")
    commands.add_parser("down", help="stop it and remove everything it made")
    options = parser.parse_args()
    folder = (options.folder or network.folder_of_cluster() or cluster.FOLDER).resolve()
    started = time.monotonic()
    try:
        if options.command == "up":
            print(Cluster.up(folder, options.nodes).kubeconfig)
        elif options.command == "down":
            cluster.take_down(folder)
        else:
            return _status(folder)
    except AssertionError as failed:
        print(f"{options.command}: {failed}", file=sys.stderr)
        return 1
    print(f"{options.command}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


def _status(folder: Path) -> int:
    """1 if something of it is not as it should be, or there is nothing."""
    kinds = Counter(trace.split()[0] for trace in cluster.traces(folder))
    print(", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing is here")
    found = Cluster.found(folder)
    if found is None or not found.api.answers():
        return 1
    ready = {node.name: is_ready(found.api, node.name) for node in found.nodes}
    print("\n".join(f"{name} {'ready' if yes else 'not ready'}" for name, yes in ready.items()))
    print(f"KUBECONFIG={found.kubeconfig}\nimage {found.image}")
    return 0 if all(ready.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
