"""What no run says of its target, as an init container of the coordinator's pod finds it for
`headway target check`, and leaves it in the status of its pod."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from lightkube.resources.core_v1 import Pod

from headway.errors import HeadwayError
from headway.kube.check_objects import FACTS
from headway.kube.client import KubeClient
from headway.kube.names import Object
from headway.kube.reviews import ACCESS, is_allowed
from headway.state.store import Store

FOLDER = "check"
"""Folder in the run's directory for files of the check."""
WRITTEN = f"{FOLDER}/written-by-the-client"
MOST_CHARACTERS = 300
"""Maximum length of an error: Kubernetes keeps 4 KB for all facts together."""
ANY_REGION = "us-east-1"
"""Region whose endpoint says where any bucket is."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class TargetFacts:
    missing_rights: Sequence[int]
    """Indices of those that were asked for."""
    rights_error: str | None
    storage_error: str | None
    """Why a file that the client has written cannot be read here, or none be created."""
    is_created_twice: bool
    """Whether the storage lets two create the same file."""
    region: str | None
    """Region of the bucket, as S3 says."""
    region_error: str | None


def target_facts(location: str, content: bytes, reviews: Sequence[Object]) -> TargetFacts:
    """Find all facts, each even if another one cannot be found. `location` is that of the run's
    directory, in which the client has written `content`."""
    missing, rights_error = _tried(lambda: _missing_rights(reviews))
    is_twice, storage_error = _tried(lambda: _is_created_twice(Store(location), content))
    region, region_error = None, None
    if location.startswith("s3://"):
        region, region_error = _tried(lambda: _region(urlsplit(location).netloc))
    return TargetFacts(
        missing or (), rights_error, storage_error, bool(is_twice), region, region_error
    )


def found_facts(pods: Sequence[Pod]) -> TargetFacts | None:
    """Return the facts that a pod of the coordinator has left; None: none has yet."""
    for pod in pods:
        for container in (pod.status.initContainerStatuses if pod.status else None) or ():
            ended = container.state.terminated if container.state is not None else None
            if container.name == FACTS and ended is not None and ended.exitCode == 0:
                return TargetFacts(**json.loads(ended.message or "{}"))
    return None


def _tried(look: Callable[[], Found]) -> tuple[Found | None, str | None]:
    try:
        return look(), None
    except (HeadwayError, OSError, ImportError) as error:
        return None, " ".join(str(error).split())[:MOST_CHARACTERS] or type(error).__name__


def _missing_rights(reviews: Sequence[Object]) -> list[int]:
    """Asked for one by one: lists of rights are incomplete where a cloud decides (EKS, GKE)."""
    kube = KubeClient.in_cluster()
    answers = [kube.call("POST", ACCESS, review) for review in reviews]
    return [index for index, answer in enumerate(answers) if not is_allowed(answer)]


def _is_created_twice(store: Store, content: bytes) -> bool:
    """Return whether two that create the same file are both told that it is theirs. Raises OSError
    if what the client has written is not seen here."""
    if store.read(WRITTEN) != content:
        raise OSError(f"{store.location(WRITTEN)} has other content here")
    first, second = (store.create(f"{FOLDER}/only-one", one) for one in (b"first", b"second"))
    return first and second


def _region(bucket: str) -> str | None:
    """Return where S3 says that the bucket is: in a header, whether or not it lets us in."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import get_session

    client = get_session().create_client(
        "s3",
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None,
        region_name=os.environ.get("AWS_DEFAULT_REGION") or ANY_REGION,
    )
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    except BotoCoreError as error:
        raise OSError(str(error)) from None
    headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers.get("x-amz-bucket-region")
