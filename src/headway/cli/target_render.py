"""headway run --on TARGET: does the run fit there, and which objects does it need?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import yaml

from headway.cli.code_changes import script_digest
from headway.cli.device_check import require_room_on, require_supported_on
from headway.cli.model_shape import known_parameters, known_workload
from headway.cli.new_target import named_target
from headway.cli.output import hint, print_json, say, warn
from headway.cli.preflight import warn_of_run_file
from headway.cli.target_sets import preparing_objects, require_sets_on
from headway.errors import BadInput, NotFound, SpecError, needs_train
from headway.kube.coordinator_set import fewest_nodes
from headway.kube.device_labels import PRODUCT
from headway.kube.manifests import NOT_SHOWN, manifests, without_key
from headway.kube.names import Object
from headway.kube.placement import require_target, resolve_on_target
from headway.kube.pod_overrides import TargetMismatch
from headway.kube.storage_layout import (
    REQUIREMENTS,
    Key,
    LocalFolder,
    StorageLayout,
    digest_placeholder,
    local_folders,
    model_digest,
    set_addresses,
)
from headway.kube.worker_devices import unknown_kind
from headway.launch.packages import ARCHIVE, InstalledPackages
from headway.member.protocol.keys import new_key
from headway.spec.target_file import with_defaults
from headway.state.code_folder import CodeFolder, CodeFolderRefused, code_folder
from headway.state.file_listing import listing_of
from headway.state.set_files import MIXTURE
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.cli.options import Output
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.located_yaml import Mark
    from headway.spec.resolve import Resolved


def show_on(loaded: Loaded, name: str | None, nodes: int | None, output: Output | None) -> None:
    """`headway run --dry-run`."""
    if name is None:
        raise BadInput(
            "--dry-run needs --on: it shows what would be created on a target",
            "for a run on this machine: headway check",
        )
    warn_of_run_file(loaded)
    print_objects(without_key(rendered(loaded, name, nodes, new_key())), output)


def print_objects(objects: Sequence[Object], output: Output | None) -> None:
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        print(as_yaml(objects), end="")


def rendered(loaded: Loaded, name: str, nodes: int | None, key: str) -> list[Object]:
    """All objects of the run on this target. Says what would be uploaded, and what is not known
    yet."""
    plan = target_plan(loaded, named_target(name, loaded.folder), nodes)
    plan.warn()
    for folder in plan.folders:
        if folder.kind != "tokenizers":
            kept = plan.layout.stored_path(folder.kind, plan.digests[folder.key])
            say(f"{'.'.join(folder.key)}: {folder.path} is uploaded to {kept}")
    for name_of_set, address in set_addresses(loaded.run).items():
        if address is None and name_of_set not in plan.digests:
            say(
                f"{'.'.join(name_of_set)}: its digest is known once it is prepared; until then it "
                f"is shown as {digest_placeholder(name_of_set)}"
            )
    code = loaded.run.code
    if code is not None and code.requirements is not None:
        say(
            "code.requirements: resolved and installed at the launch; until then their digest is "
            f"shown as {digest_placeholder(REQUIREMENTS)}"
        )
    return plan.objects(key)


def require_complete_target(loaded: Loaded, found: LoadedTarget) -> None:
    """Raises if the target lacks what every run needs: no run file can make up for that."""
    with errors_located(found):
        StorageLayout.of(loaded.run, found.target)
        require_target(with_defaults(loaded.run, found.target), found.target)


def require_fit_on(loaded: Loaded, found: LoadedTarget) -> None:
    """Raises if the run does not fit on the target. Reads no folders, and asks no cluster."""
    resolved_for(loaded, found)


def resolved_for(loaded: Loaded, found: LoadedTarget, nodes: int | None = None) -> Resolved:
    """The run as it would be on the target, without digests. Raises as `require_fit_on` does."""
    with errors_located(found):
        layout = StorageLayout.of(loaded.run, found.target)
    folders = local_folders(loaded, lambda path: path.is_dir())
    return _plan(loaded, found, nodes, layout, folders, {}, None).resolved


def target_plan(loaded: Loaded, found: LoadedTarget, nodes: int | None) -> TargetPlan:
    """Raises if the run does not fit on the target, or if a folder that it needs is missing."""
    with errors_located(found):
        layout = StorageLayout.of(loaded.run, found.target)
    folders = local_folders(loaded, lambda path: path.is_dir())
    code = _code(loaded, folders)
    return _plan(loaded, found, nodes, layout, folders, _digests(loaded, folders, code), code)


@dataclass(frozen=True)
class TargetPlan:
    """A run as it will be on a target, with what is uploaded for it."""

    loaded: Loaded
    found: LoadedTarget
    nodes: int | None
    """Number of nodes that the user asked for; None: as the run file says."""
    layout: StorageLayout
    folders: Sequence[LocalFolder]
    """Folders on this machine that are uploaded."""
    digests: Mapping[Key, str]
    """Digests of those folders."""
    resolved: Resolved
    """The run on the target."""
    code: CodeFolder | None
    """As it was when the digest was made: an edit after that is one of the next launch."""

    def with_sets(
        self, sets_here: Sequence[LocalFolder], sets_there: Mapping[Key, str]
    ) -> TargetPlan:
        """The same, once its sets are prepared. `sets_there`: folders of those that were prepared
        on the target."""
        folders = [*(folder for folder in self.folders if folder.kind != "sets"), *sets_here]
        digests = {**self.digests, **_digests(self.loaded, sets_here), **sets_there}
        return self._again(folders, digests)

    def with_packages(self, packages: InstalledPackages | None) -> TargetPlan:
        """The same, with what its requirements were resolved to."""
        if packages is None:
            return self
        packages.archive()
        here = [LocalFolder(REQUIREMENTS, "packages", packages.folder)]
        digests = {**self.digests, **_digests(self.loaded, here)}
        folders = [*self.folders, *here]
        plan = self._again(folders, digests)
        resolved = plan.resolved.model_copy(update={"packages_for": packages.worker})
        return replace(plan, resolved=resolved)

    def _again(self, folders: Sequence[LocalFolder], digests: Mapping[Key, str]) -> TargetPlan:
        return _plan(self.loaded, self.found, self.nodes, self.layout, folders, digests, self.code)

    def objects(self, key: str) -> list[Object]:
        return manifests(self.resolved, self.found.target, key)

    @property
    def least_nodes(self) -> int:
        """With fewer, the run does not start: the minimum of a range, else all."""
        wanted = self.resolved.run.resources.nodes
        is_range = wanted.minimum < wanted.maximum
        return fewest_nodes(self.resolved) if is_range else self.resolved.nodes

    def warn(self) -> None:
        """Warns of what is possible but perhaps not intended."""
        self._warn_of_spot()
        self._warn_of_kind()

    def _warn_of_kind(self) -> None:
        target = self.found.target
        kind = unknown_kind(self.resolved, target)
        if kind is None:
            return
        where = self._mark_of("accelerators")
        warn(
            f"{where}: Headway does not know how machines with {kind} are labelled: pods may run "
            f"on any machine with {target.pod.device}"
        )
        hint(
            f"in the target: accelerators: {{{kind}: [{{{PRODUCT}: VALUE}}]}}, or another label of "
            "such machines; [] if all of them are such"
        )

    def _mark_of(self, key: str) -> Mark:
        """Position of a key of `resources`: in the run file, else in the target."""
        is_of_run = key in self.loaded.run.resources.model_fields_set
        return (self.loaded.located if is_of_run else self.found).mark(("resources", key))

    def _warn_of_spot(self) -> None:
        resources = self.resolved.run.resources
        is_written = "spot" in resources.model_fields_set
        if is_written and resources.spot == "none" and not self.found.target.spot_label:
            warn(
                f"{self._mark_of('spot')}: `spot: none` has no effect: {self.found.name} has no "
                "spot_label that marks spot machines"
            )
            hint(
                "spot_label: {karpenter.sh/capacity-type: spot}, or the label of such machines here"
            )


def _plan(
    loaded: Loaded,
    found: LoadedTarget,
    nodes: int | None,
    layout: StorageLayout,
    folders: Sequence[LocalFolder],
    digests: Mapping[Key, str],
    code: CodeFolder | None,
) -> TargetPlan:
    require_sets_on(loaded, found)
    require_supported_on(loaded, found)
    workload = known_workload(loaded)
    with errors_located(found):
        resolved = resolve_on_target(
            loaded,
            found.target,
            nodes=nodes,
            parameters=known_parameters(loaded, workload),
            layout=layout,
            folders=folders,
            digests=digests,
            workload=workload,
        ).model_copy(update={"script_digest": script_digest(loaded, code)})
        plan = TargetPlan(loaded, found, nodes, layout, folders, digests, resolved, code)
        # Made to raise what is wrong with the target.
        plan.objects(NOT_SHOWN)
        preparing_objects(loaded.run, found.target)
    require_room_on(loaded, resolved, found)
    return plan


@contextmanager
def errors_located(found: LoadedTarget) -> Iterator[None]:
    """Errors name their position in the target file."""
    try:
        yield
    except TargetMismatch as unfit:
        keys = ".".join(map(str, (found.name, *unfit.path)))
        where = str(found.mark(unfit.path))
        todo = unfit.hint and unfit.hint.replace("--on TARGET", f"--on {found.name}")
        raise SpecError(f"{keys}: {unfit.message}", where, todo) from None


def _digests(
    loaded: Loaded, folders: Sequence[LocalFolder], code: CodeFolder | None = None
) -> dict[Key, str]:
    """Digests of what is uploaded, as far as it needs no preparation."""
    digests: dict[Key, str] = {}
    for folder in folders:
        where = str(loaded.located.mark(folder.key))
        if not folder.path.is_dir():
            raise SpecError(
                f"{'.'.join(folder.key)}: there is no folder {folder.path}",
                where,
                "paths are relative to the folder of the run file",
            )
        match folder.kind:
            case "code":
                assert code is not None
                digests[folder.key] = code.listing.digest
            case "models":
                digests[folder.key] = model_digest(folder.path)
            case "sets":
                digests[folder.key] = _set_digest(folder, where)
            case "packages":
                digests[folder.key] = listing_of({ARCHIVE: folder.path / ARCHIVE}).digest
    return digests


def as_yaml(objects: Sequence[Object]) -> str:
    """One YAML document per object."""
    return str(
        yaml.dump_all(
            objects,
            Dumper=_Dumper,
            sort_keys=False,
            explicit_start=True,
            allow_unicode=True,
            width=1000,
        )
    )


class _Dumper(yaml.SafeDumper):
    """Output for people: no anchors, files as blocks, and quotes around all text that some version
    of YAML could read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None
        if "\n" in text:
            style = "|"
        elif len(text) < 2 or not (text[0].isalpha() or text[0] == "/"):
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _code(loaded: Loaded, folders: Sequence[LocalFolder]) -> CodeFolder | None:
    """Read once: data is prepared and other folders are uploaded before it is."""
    folder = next((one for one in folders if one.kind == "code"), None)
    if folder is None or not folder.path.is_dir():
        return None
    try:
        found = code_folder(loaded.run, loaded.folder)
        assert found is not None
        _ = found.listing
        return found
    except CodeFolderRefused as refused:
        where = str(loaded.located.mark(folder.key))
        raise SpecError(refused.message, where, refused.hint) from None


def _set_digest(folder: LocalFolder, where: str) -> str:
    try:
        from headway.data.reading.mixture import read_mixture
        from headway.data.set_format import read_manifest
    except ImportError as error:
        raise needs_train("reading a prepared set", error) from None
    read = read_mixture if (folder.path / MIXTURE).is_file() else read_manifest
    try:
        return read(Store(folder.path)).digest
    except NotFound as error:
        raise SpecError(f"{'.'.join(folder.key)}: {error.message}", where, error.hint) from None
