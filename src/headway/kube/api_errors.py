"""What goes wrong when the API server or a pod is asked: errors of ours, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import msgspec
from lightkube import ApiError
from lightkube.core.exceptions import ConfigError
from lightkube.models.meta_v1 import Status

from headway.errors import BadInput, HeadwayError, NotFound
from headway.kube.pod_http import NoWayToPod, PodAnswerLost, PodNotListening

NOT_JSON = (json.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError, httpx2.DecodingError)
NOT_BY_RIGHTS = re.compile(
    r'" is forbidden: (?!User |user .* attempting to grant)|^admission webhook|violates'
)
"""Words of a refusal that is not for want of a right: by policy, a quota, a limit, a webhook."""


class ClusterUnreachable(HeadwayError, OSError):
    """The API server does not answer; it may soon."""

    retry_after_seconds = 0.0
    """What it asks to wait for before the next call."""


class PodUnreachable(ClusterUnreachable):
    """Neither port-forward nor proxy reaches a pod, and both say why."""


class RequestRefused(BadInput):
    """The API server refused the request, and says why."""


class Forbidden(RequestRefused):
    """The user has no right to it."""


class NotLoggedIn(RequestRefused):
    """The API server does not know the user."""


class PodForbidden(RequestRefused):
    """The user may use neither port-forward nor proxy."""


class Conflict(RequestRefused):
    """Another client changed or created the object first."""


class StaleVersion(ClusterUnreachable):
    """The API server no longer knows that version: list everything again."""


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Turn the errors of calls into errors of ours."""
    try:
        yield
    except ApiError as error:
        raise _refusal(what, error.status) from None
    except httpx2.HTTPStatusError as error:
        code = error.response.status_code
        status = Status(code=code, message=error.response.reason_phrase)
        raise _refusal(what, status) from None
    except (ConfigError, FileNotFoundError, PermissionError) as error:
        # The file of a token.
        raise BadInput(
            f"the login in your kubeconfig failed: {str(error).strip()}",
            "make this work first: kubectl get pods",
        ) from None
    except PodNotListening as error:
        raise ClusterUnreachable(f"{what} does not listen yet: {error}") from None
    except PodAnswerLost as error:
        raise ClusterUnreachable(f"{what} was asked and did not answer: {error}") from None
    except NoWayToPod as error:
        raise _unreachable(what, error) from None
    except httpx2.TransportError as error:
        words = f"the API server does not answer: {error}{_server(error)}"
        raise ClusterUnreachable(words) from None
    except NOT_JSON as error:  # of a proxy before it, say
        raise ClusterUnreachable(f"what the API server answered is not JSON: {error}") from None


def _server(error: httpx2.TransportError) -> str:
    """Its address, if the error has it."""
    try:
        url = error.request.url
    except RuntimeError:
        return ""
    return f" ({url.scheme}://{url.netloc.decode()})"


def _unreachable(what: str, error: NoWayToPod) -> HeadwayError:
    words = f"{what} cannot be reached: {error}"
    if error.is_forbidden:
        return PodForbidden(
            words, "ask the administrator of the namespace for pods/portforward: get and create"
        )
    return PodUnreachable(words)


def _refusal(what: str, status: Status) -> HeadwayError:
    message = status.message or status.reason or "no reason given"
    if status.code == 404:
        return NotFound(f"{what}: {message}")
    if status.code == 409:
        return Conflict(f"{what}: {message}")
    if status.code == 410:
        return StaleVersion(f"{what}: {message}")
    if status.code == 401:
        return NotLoggedIn(
            f"{what}: you are not logged in to the cluster",
            "log in again, and check with: kubectl get pods",
        )
    if status.code == 403 and NOT_BY_RIGHTS.search(message) is None:
        return Forbidden(
            f"{what}: {message}", "ask the administrator of the namespace for this permission"
        )
    if status.code is not None and (status.code >= 500 or status.code == 429):
        error = ClusterUnreachable(f"{what}: the API server answers {status.code}: {message}")
        if status.details is not None:
            error.retry_after_seconds = float(status.details.retryAfterSeconds or 0)
        return error
    return RequestRefused(f"{what}: {message}")
