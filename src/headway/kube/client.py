"""Every call to the API server: by selector, in pages, with a deadline. Errors become messages: the
rest of Headway knows neither HTTP nor status codes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

import httpx2
from lightkube import ApiError, Client
from lightkube.codecs import from_dict
from lightkube.core.decoders import decode_list, decode_status, decode_watch_event
from lightkube.core.exceptions import ConfigError
from lightkube.core.resource import NamespacedResource
from lightkube.models.meta_v1 import Status, StatusDetails
from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Pod
from lightkube.types import CascadeType, PatchType

from headway.errors import BadInput
from headway.kube.api_errors import in_words
from headway.kube.connection import (
    CALL_SECONDS,
    in_cluster_client,
    kubeconfig_client,
    objects_client,
    tell_cluster_once,
)
from headway.kube.names import (
    COMPONENT,
    CONTROLLER_UIDS,
    FINALIZER,
    SUSPECT,
    SUSPECT_UNTIL,
    Component,
    Object,
)
from headway.kube.pod_http import (
    PodHttp,
    PodRequest,
    api_status,
)
from headway.kube.scheduling_gate import patch_of_gate

PAGE = 500
FEW = 20
WATCH_SECONDS = 240
"""Time after which the server ends a watch and a new one starts: a watch that died silently does
not last forever."""
Found = TypeVar("Found")
Selector = Mapping[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


_DECODING = Lock()


@functools.cache
def _prepare_decoding() -> None:
    """msgspec analyses a type when an object of it is first decoded. Two threads that do so at the
    same time crash the process, and whoever watches pods decodes in two."""
    for kind in (Pod, Job, ReplicaSet, Event, ConfigMap):
        decode_list(b'{"items": []}', kind)
    decode_status(b"{}")
    decode_watch_event(b'{"type": "ADDED", "object": {}}')


class KubeClient:
    """A client of one namespace."""

    def __init__(self, client: Client, http: httpx2.Client, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._http = http
        self._pod_http = PodHttp(http, namespace, CALL_SECONDS)
        self.on_answer: Callable[[str], None] = lambda server: None
        """Called with the header Server of each answer of a pod."""
        with _DECODING:
            _prepare_decoding()

    @classmethod
    def from_kubeconfig(
        cls, context: str | None, namespace: str, say: Callable[[str], None] = lambda words: None
    ) -> KubeClient:
        """Connect by the user's kubeconfig. `say` tells a user to sign in where that is needed, and
        which cluster it is before anything is changed there."""
        try:
            http = kubeconfig_client(context, say)
            tell_cluster_once(http, namespace, say)
            return cls._of(http, namespace)
        except (ConfigError, OSError) as error:  # OSError: a certificate's file
            raise BadInput(f"cannot connect to a cluster: {error}", "kubectl config view") from None

    @classmethod
    def in_cluster(cls) -> KubeClient:
        """From a pod, with its token."""
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        return cls._of(in_cluster_client(), namespace)

    @classmethod
    def _of(cls, http: httpx2.Client, namespace: str) -> KubeClient:
        return cls(objects_client(http, namespace), http, namespace)

    # Objects

    def apply(self, manifest: Object, dry_run: bool = False) -> Any:
        """Server-side apply: creates or updates the object."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        with in_words(f"{kind} {name}"):
            made = cast(NamespacedResource, from_dict(manifest))
            return self._client.apply(made, force=True, dry_run=dry_run)

    def create(self, manifest: Object) -> Any:
        """Raises Conflict if it exists."""
        with in_words(f"{manifest['kind']} {manifest['metadata']['name']}"):
            return self._client.create(cast(NamespacedResource, from_dict(manifest)))

    def job(self, name: str) -> Job | None:
        with in_words(f"Job {name}"):
            return _or_none(lambda: self._client.get(Job, name))

    def jobs(self, selector: Selector) -> list[Job]:
        with in_words("Jobs"):
            return list(self._client.list(Job, labels=dict(selector), chunk_size=PAGE))

    def patch_job(self, name: str, patch: Object) -> Job:
        with in_words(f"Job {name}"):
            return self._client.patch(Job, name, patch, patch_type=PatchType.MERGE)

    def suspend_job(self, name: str, suspended: bool = True) -> None:
        """Deletes its pods, or creates them again."""
        self.patch_job(name, {"spec": {"suspend": suspended}})

    def forget_start(self, job: Job) -> Job:
        """Removes the start time of a suspended Job, as Kueue does: its pods may then be changed.
        Raises Conflict if the Job has changed since it was read."""
        assert job.metadata is not None
        metadata = {"resourceVersion": job.metadata.resourceVersion}
        path = f"apis/batch/v1/namespaces/{self.namespace}/jobs/{job.metadata.name}/status"
        patch = {"metadata": metadata, "status": {"startTime": None}}
        return cast(Job, Job.from_dict(self.call("PATCH", path, patch)))

    def delete_job(self, name: str, uid: str | None = None, version: str | None = None) -> bool:
        """With all that it owns. Returns whether it existed. Raises Conflict if it is another than
        the one with `uid`, or has changed since that version."""
        required = {"uid": uid, "resourceVersion": version}
        options: Object = {
            "propagationPolicy": CascadeType.BACKGROUND.value,
            "preconditions": {key: value for key, value in required.items() if value is not None},
        }
        path = f"apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"
        with in_words(f"Job {name}"):
            response = self._http.request("DELETE", path, json=options)
            if response.status_code == 404:
                return False
            _require_success(response)
            return True

    def replica_set(self, name: str) -> ReplicaSet | None:
        with in_words(f"ReplicaSet {name}"):
            return _or_none(lambda: self._client.get(ReplicaSet, name))

    def scale_replica_set(self, name: str, replicas: int) -> None:
        """Creates its pods, or deletes them."""
        with in_words(f"ReplicaSet {name}"):
            size = {"spec": {"replicas": replicas}}
            self._client.patch(ReplicaSet.Scale, name, size, patch_type=PatchType.MERGE)

    def config_map(self, name: str) -> ConfigMap | None:
        with in_words(f"ConfigMap {name}"):
            return _or_none(lambda: self._client.get(ConfigMap, name))

    def replace_config_map(self, config_map: ConfigMap) -> bool:
        """Returns False if it changed since it was read."""
        assert config_map.metadata is not None
        with in_words(f"ConfigMap {config_map.metadata.name}"):
            try:
                self._client.replace(config_map)
            except ApiError as error:
                if error.status.code == 409:
                    return False
                raise
            return True

    def call(
        self, method: str, path: str, sent: Object | None = None, accept: str = "application/json"
    ) -> Object:
        """For kinds of object that lightkube does not know. A patch is a merge patch."""
        kind = PatchType.MERGE.value if method == "PATCH" else "application/json"
        headers = {"Accept": accept} | ({"Content-Type": kind} if sent is not None else {})
        content = json.dumps(sent).encode() if sent is not None else None
        with in_words(path.partition("?")[0]):
            response = self._http.request(method, path, content=content, headers=headers)
            _require_success(response)
            return dict(response.json())

    # Pods

    def pods(self, selector: Selector, taken: Callable[[Pod], Found]) -> tuple[list[Found], str]:
        """The result of `taken` for each pod, and the resource version to watch from. Of thousands
        of pods, only one page is in memory at a time."""
        with in_words("pods"):
            listing = self._client.list(Pod, labels=dict(selector), chunk_size=PAGE)
            return [taken(pod) for pod in listing], listing.resourceVersion

    def cached_pods(self, selector: str) -> list[Pod]:
        """All of them, from the API server's cache, which may be a second old: for an exact answer
        it reads all pods of the namespace."""
        path = f"api/v1/namespaces/{self.namespace}/pods"
        with in_words("pods"):
            asked = {"labelSelector": selector, "resourceVersion": "0", "limit": str(FEW)}
            response = self._http.get(path, params=asked)
            _require_success(response)
            return [cast(Pod, Pod.from_dict(one)) for one in response.json()["items"]]

    def first_pods(
        self, selector: Selector, most: int, fields: Selector | None = None
    ) -> list[Pod]:
        """At most `most` of them, in one call."""
        with in_words("pods"):
            pods = []
            for pod in self._client.list(
                Pod, labels=dict(selector), fields=dict(fields) if fields else None, chunk_size=most
            ):
                pods.append(pod)
                if len(pods) == most:
                    break
            return pods

    def pod(self, name: str) -> Pod | None:
        with in_words(f"pod {name}"):
            return _or_none(lambda: self._client.get(Pod, name))

    def watch_pods(self, selector: Selector, version: str) -> Iterator[tuple[str, Pod]]:
        """(event type, pod) until the server ends the watch. Raises StaleVersion if `version` is
        too old to start from."""
        with in_words("pods"):
            yield from self._client.watch(
                Pod, labels=dict(selector), resource_version=version, server_timeout=WATCH_SECONDS
            )

    def release_pod(self, name: str) -> None:
        """Removes its Job's finalizer, which keeps it from being deleted."""
        self._merge_into_pod(
            name, {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
        )

    def mark_suspect(self, name: str, job_uid: str, until: float) -> None:
        """Takes a lost pod from its Job, which makes another at once, and leaves it where it is:
        no worker's pod is scheduled beside it.

        By one call. With its label but no controller, the Job would adopt it again; with its
        controller but no label, the Job would drop the reference, and the pod would outlive it."""
        off = dict.fromkeys((*CONTROLLER_UIDS, COMPONENT))
        metadata = {
            "labels": {SUSPECT: "true", **off},
            "annotations": {SUSPECT_UNTIL: f"{until:.0f}"},
            "ownerReferences": [{"uid": job_uid, "controller": False}],
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }
        self._merge_into_pod(name, {"metadata": metadata})

    def _merge_into_pod(self, name: str, patch: Object) -> None:
        """If the pod exists."""
        with in_words(f"pod {name}"):
            _or_none(lambda: self._client.patch(Pod, name, patch, patch_type=PatchType.STRATEGIC))

    def lift_gate(self, name: str, num_terms: int, not_labelled: tuple[str, str] | None) -> None:
        """The pod, which has so many terms of node affinity, may be scheduled, but on no node with
        that label."""
        patch = patch_of_gate(num_terms, not_labelled)
        with in_words(f"pod {name}"):
            _or_none(lambda: self._client.patch(Pod, name, patch, patch_type=PatchType.JSON))

    def delete_pod(self, name: str, grace_seconds: int | None = None) -> None:
        with in_words(f"pod {name}"):
            _or_none(lambda: self._client.delete(Pod, name, grace_period=grace_seconds))

    def events_of(self, uid: str) -> list[Event]:
        """Kubernetes events of one object, the newest last."""
        with in_words("events"):
            found = self._client.list(Event, fields={"involvedObject.uid": uid}, chunk_size=PAGE)
            return sorted(found, key=lambda event: str(event.lastTimestamp or event.eventTime))

    def log_lines(
        self, pod: str, container: Component, follow: bool, since: str | None
    ) -> Iterator[tuple[str, str]]:
        """(the kubelet's time, line) of our container, from `since` on. There may be others, which
        the cluster has put beside it."""
        path = f"api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        parameters = {"container": container, "timestamps": "true"}
        parameters["follow"] = "true" if follow else "false"
        if since is not None:
            parameters["sinceTime"] = since
        timeout = httpx2.Timeout(CALL_SECONDS, read=None if follow else CALL_SECONDS)
        with (
            in_words(f"log of {pod}"),
            self._http.stream("GET", path, params=parameters, timeout=timeout) as response,
        ):
            _require_success(response)
            for line in response.iter_lines():
                time, _, text = line.partition(" ")
                yield time, text

    # To a pod's own port

    def request_to_pod(
        self,
        pod: str,
        port: int,
        path: str,
        method: str = "GET",
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """A request to its HTTP port, with the user's own permissions. Returns the content."""
        with in_words(f"pod {pod}"):
            request = PodRequest(pod, port, path, method, content, headers or {})
            response = self._pod_http.request(request)
            _require_success(response)
            self.on_answer(response.headers.get("Server", ""))
            return response.content

    @property
    def way_to_pods(self) -> str | None:
        """The one that worked the last time."""
        return self._pod_http.kept


def _or_none(call: Callable[[], Found]) -> Found | None:
    """None if it does not exist."""
    try:
        return call()
    except ApiError as error:
        if error.status.code == 404:
            return None
        raise


def _require_success(response: httpx2.Response) -> None:
    if response.is_error:
        response.read()
        status = api_status(response)
        if status is None:
            text = response.text.strip()[:500] or response.reason_phrase
            status = Status(code=response.status_code, message=text)
        if (seconds := response.headers.get("Retry-After", "")).isdigit():
            status.details = status.details or StatusDetails()
            status.details.retryAfterSeconds = int(seconds)
        raise ApiError(status=status)
