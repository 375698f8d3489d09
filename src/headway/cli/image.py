"""headway image: an image for the workers of a target."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.output import hint, say, warn

if TYPE_CHECKING:
    from headway.spec.load import LoadedTarget
    from headway.spec.target_file import Target

app = plain_app(
    help="Build an image for workers, push it, and write it into a target.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    pass


@app.command(
    "build",
    cls=ExampleCommand,
    epilog="headway image build --push registry.example/headway --on lab\n"
    "headway image build --push registry.example/ours --base registry.example/torch:2.15",
)
def build(
    push: Annotated[
        str, typer.Option(metavar="REGISTRY/NAME", help="Where to push it; :TAG may follow.")
    ],
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="TARGET", help="Target whose `image` it becomes, by digest."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image of Debian or Ubuntu with Python, pip and torch to build on. Default: "
            "PyTorch's own.",
        ),
    ] = None,
    efa: Annotated[
        bool,
        typer.Option("--efa", help="Add AWS' plugin for NCCL. Default: if the target names it."),
    ] = False,
    platform: Annotated[
        str | None,
        typer.Option(help="Default: the target's architecture, else linux/amd64."),
    ] = None,
    builder: Annotated[
        str | None, typer.Option(metavar="docker|podman|buildah", help="Default: the first found.")
    ] = None,
) -> None:
    """Build an image with Headway, torch and what NCCL needs, push it, and print its digest.

    The image has the files of this Headway and its packages by version and hash. Needs docker,
    podman or buildah, and a login to the registry."""
    from headway.kube.image_context import build_context
    from headway.kube.images import stock_images
    from headway.launch.image_builder import ImageBuilder
    from headway.spec.load import load_target
    from headway.spec.target_text import require_writable

    address = _address(push)
    found = load_target(on, Path.cwd()) if on is not None else None
    if found is not None:
        require_writable(_file(found), found.name)  # before the build takes its time
    target, stock = found.target if found else None, stock_images()
    program = ImageBuilder(builder)
    files = build_context(
        base or stock.pytorch, stock.efa if efa or (target and names_efa(target)) else None
    )
    with TemporaryDirectory(prefix="headway-") as scratch:
        context = Path(scratch, "context")
        context.mkdir()
        for name, content in files.items():
            (context / name).write_bytes(content)
        say(f"building {address} with {program.program}")
        image = program.pushed(context, address, platform or _platform(target))
    if found is not None:
        _write(found, image)
    print(image)
    hint(f"headway target check {on}" if on else f"headway target add NAME --image {image}")


def names_efa(target: Target) -> bool:
    """Whether workers ask for AWS' network devices, or name their plugin."""
    network = target.pod.env.get("NCCL_NET", "").lower()
    return network == "aws libfabric" or any("efa" in name for name in target.pod.resources)


def _address(push: str) -> str:
    """`REGISTRY/NAME:TAG`."""
    from headway import __version__
    from headway.errors import BadInput
    from headway.kube.wheels import own_digest

    last = push.rpartition("/")[2]
    if "@" in push or "://" in push or not last or last == push:
        raise BadInput(
            f"--push {push} is not REGISTRY/NAME or REGISTRY/NAME:TAG",
            "headway image build --push registry.example/headway",
        )
    return push if ":" in last else f"{push}:{__version__}-{own_digest()}"


def _platform(target: Target | None) -> str:
    from headway.spec.pod_config import ARCHITECTURE

    pod = target.pod if target else None
    known = (pod.architecture or pod.node_selector.get(ARCHITECTURE)) if pod else None
    return f"linux/{known or 'amd64'}"


def _file(found: LoadedTarget) -> Path:
    return Path(found.mark(()).file)


def _write(found: LoadedTarget, image: str) -> None:
    from headway.spec.target_text import write_image

    write_image(_file(found), found.name, image)
    say(f"image of target {found.name} in {_file(found)}: {image}")
    for section in ("coordinator", "prepare"):
        if getattr(found.target, section).image is not None:
            where = found.mark((section, "image"))
            warn(f"{where}: {section}.image stays as it was; this image can do that, too")
            hint(f"remove {section}.image from target {found.name}")
