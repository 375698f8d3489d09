"""g++ of this machine in pods, whose image has none: two read-only claims, and a wrapper that finds
everything below their mount."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from cluster_tool.volumes import claim_folder
from support.lab import Lab

PLACE = "/compiler"
WRAPPER = f"""\
#!/bin/sh
export LD_LIBRARY_PATH={PLACE}/usr/lib/x86_64-linux-gnu:{PLACE}/usr/lib/aarch64-linux-gnu
exec {PLACE}/usr/bin/g++ --sysroot={PLACE} -B{PLACE}/usr/bin -I{PLACE}/python "$@"
"""


def give_compiler(lab: Lab) -> None:
    """To the pods of its target."""
    folder = lab.shared / "compiler"
    (folder / "bin").mkdir(parents=True)
    (folder / "usr").mkdir()
    (folder / "lib").symlink_to("usr/lib")
    (folder / "lib64").mkdir()
    for loader in Path("/lib64").glob("ld-linux*"):  # a link to a place that pods do not have
        shutil.copy(loader, folder / "lib64")
    shutil.copytree(sysconfig.get_path("include"), folder / "python")
    wrapper = folder / "bin" / "g++"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    pod = lab.target()["pod"]
    volumes, mounts = [*pod["volumes"]], [*pod["mounts"]]
    places = {"compiler": (folder, PLACE), "system": (Path("/usr"), f"{PLACE}/usr")}
    for name, (path, place) in places.items():
        claim_folder(lab.cluster.api, lab.namespace, name, path, "ReadOnlyMany")
        claim = {"claimName": name, "readOnly": True}
        volumes.append({"name": name, "persistentVolumeClaim": claim})
        mounts.append({"name": name, "mountPath": place, "readOnly": True})
    programs = f"{PLACE}/bin:{pod['env']['PATH']}"
    lab.change_target(
        {"volumes": volumes, "mounts": mounts, "env": {**pod["env"], "PATH": programs}}
    )
