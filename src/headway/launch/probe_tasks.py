"""What a probe does that has Headway: a bucket by the same store as a run, and its account's own
rights."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from headway.errors import HeadwayError
from headway.kube import probe
from headway.kube.client import KubeClient
from headway.launch.asked_rights import refused
from headway.state.store import Store

Content = dict[str, Any]
MEGABYTE = 10**6


def tasks() -> dict[str, Callable[[Content], Content]]:
    return {
        **probe.TASKS,
        "rights": rights,
        "bucket-write": bucket_write,
        "bucket-read": bucket_read,
        "bucket-create": bucket_create,
        "bucket-remove": bucket_remove,
        "bucket-region": bucket_region,
    }


def alone() -> Content:
    return {"facts": probe.facts({})}


def rights(asked: Content) -> Content:
    """Those of this pod's account that are missing."""
    try:
        missing = refused(KubeClient.in_cluster(), asked["reviews"])
    except (HeadwayError, OSError) as error:
        return {"missing": [], "error": _words(error)}
    return {"missing": missing, "error": None}


def bucket_write(asked: Content) -> Content:
    block = os.urandom(asked["megabytes"] * MEGABYTE)
    answer = {"steps": {"write": None}, "num_bytes": len(block), "seconds": 0.0}
    answer["sha256"] = hashlib.sha256(block).hexdigest()
    began = time.monotonic()
    try:
        Store(asked["root"]).write(f"{asked['folder']}/written", block)
    except (OSError, HeadwayError) as error:
        answer["steps"] = {"write": _words(error)}
    answer["seconds"] = time.monotonic() - began
    return answer


def bucket_read(asked: Content) -> Content:
    began = time.monotonic()
    try:
        content = Store(asked["root"]).read(f"{asked['folder']}/written")
    except (OSError, HeadwayError) as error:
        return {"waited": 0.0, "num_bytes": 0, "seconds": 0.0, "error": _words(error)}
    is_same = hashlib.sha256(content).hexdigest() == asked["sha256"]
    error_words = None if is_same else "it has other content here"
    seconds = time.monotonic() - began
    return {"waited": 0.0, "num_bytes": len(content), "seconds": seconds, "error": error_words}


def bucket_create(asked: Content) -> Content:
    """Twice, by two that know nothing of each other: only one may be the first."""
    try:
        store = Store(asked["root"])
        first = store.create(f"{asked['folder']}/only-one", b"first")
        second = store.create(f"{asked['folder']}/only-one", b"second")
    except (OSError, HeadwayError) as error:
        return {"first": {}, "error": _words(error)}
    return {"first": {"first": first, "second": second}, "error": None}


def bucket_remove(asked: Content) -> Content:
    try:
        Store(asked["root"]).remove(asked["folder"])
    except (OSError, HeadwayError) as error:
        return {"is_gone": False, "error": _words(error)}
    return {"is_gone": True, "error": None}


def bucket_region(asked: Content) -> Content:
    """Where S3 says that the bucket is: in a header, whether or not it lets us in."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    bucket = urlsplit(asked["root"]).netloc
    try:
        from botocore.exceptions import BotoCoreError

        headers = _head_bucket(bucket, endpoint or None)
    except (ImportError, OSError, BotoCoreError) as error:
        return {"region": None, "endpoint": endpoint, "error": _words(error)}
    region = headers.get("x-amz-bucket-region")
    return {"region": region, "endpoint": endpoint, "error": None}


def _head_bucket(bucket: str, endpoint: str | None) -> Mapping[str, str]:
    from botocore.exceptions import ClientError
    from botocore.session import get_session

    client = get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
    )
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
