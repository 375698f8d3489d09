"""HTTP to ports of pods: by port-forward, which goes through the kubelet; where that is refused or
silent, by the API server's proxy, which connects to the pod's address itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

import httpcore2
import httpx2
from lightkube.models.meta_v1 import Status

from headway.kube.port_forward import ForwardFailed, ForwardRefused, PortForward

UPGRADE_SECONDS = 10.0
"""For a connection by port-forward. The API server itself waits 30 s for a kubelet."""
MAX_CONNECTIONS = 8
KEEPALIVE_SECONDS = 30.0
"""Less than the servers in pods wait for the next request of a connection."""
PASSED_ON = (401, 404)
"""Answers of the API server that are the same either way."""
SAFE = ("GET", "HEAD")
"""What may be asked twice."""
GATEWAY_ERRORS = (502, 504)
"""Not the pod's: something on the way to it answers so."""
SENDING = "http11.send_request_headers.started"
"""The connection pool's event: from here on the pod may get the request."""
Way = Literal["port-forward", "proxy"]


class PodNotListening(httpx2.ConnectError):
    """The kubelet was reached; nothing listens on the port."""


class WaysFailed(httpx2.TransportError):
    """With the reason of each way that was tried."""

    def __init__(self, failures: Mapping[Way, WayFailed]) -> None:
        super().__init__("; ".join(f"{way}: {failure}" for way, failure in failures.items()))


class PodAnswerLost(WaysFailed):
    """The request was sent, and no answer came: the pod may have done what it was asked."""


class NoWayToPod(WaysFailed):
    def __init__(self, failures: Mapping[Way, WayFailed]) -> None:
        super().__init__(failures)
        self.is_forbidden = all(failure.code == 403 for failure in failures.values())


class WayFailed(Exception):
    """`code`: of the API server's answer, if it gave one. `is_sent`: the request may have
    arrived. `is_late`: the answer was waited for."""

    def __init__(
        self, words: str, code: int | None = None, is_sent: bool = False, is_late: bool = False
    ) -> None:
        super().__init__(words)
        self.code = code
        self.is_sent = is_sent
        self.is_late = is_late


@dataclass(frozen=True)
class PodRequest:
    pod: str
    port: int
    path: str
    """With its query."""
    method: str = "GET"
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class PodHttp:
    """Of one namespace, for any number of threads. The way that worked is kept until it fails."""

    def __init__(
        self,
        http: httpx2.Client,
        namespace: str,
        call_seconds: float,
        upgrade_seconds: float = UPGRADE_SECONDS,
    ) -> None:
        self._http = http
        self._namespace = namespace
        self._call_seconds = call_seconds
        self._upgrade_seconds = upgrade_seconds
        self._pool = httpcore2.ConnectionPool(
            network_backend=PortForward(http, namespace),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
        )
        self._ways: dict[Way, Callable[[PodRequest], httpx2.Response]] = {
            "port-forward": self._forwarded,
            "proxy": self._proxied,
        }
        self.kept: Way | None = None

    def request(self, request: PodRequest) -> httpx2.Response:
        """The pod's answer, or the API server's that there is no such pod. Raises NoWayToPod,
        PodNotListening, PodAnswerLost, or another TransportError if the API server cannot be
        reached."""
        kept, failures = self.kept, dict[Way, WayFailed]()
        for way in [kept, kept] if kept is not None else self._ways:
            try:
                answer = self._ways[way](request)
            except WayFailed as failure:
                if kept is not None and failure.code == 403:  # a right was taken away
                    self.kept = None
                    return self.request(request)
                failures[way] = failure
                if _may_try_again(request, failure, is_kept=kept is not None):
                    continue
                break
            if api_status(answer) is None:
                self.kept = way
            return answer
        is_safe = request.method in SAFE
        is_lost = all(failure.is_sent for failure in failures.values())
        is_lost &= kept is not None or not is_safe
        if is_safe or not is_lost:
            self.kept = None
        raise PodAnswerLost(failures) if is_lost else NoWayToPod(failures)

    def _forwarded(self, request: PodRequest) -> httpx2.Response:
        seconds = self._call_seconds
        timeouts = {"connect": self._upgrade_seconds}
        timeouts |= dict.fromkeys(("read", "write", "pool"), seconds)
        events: set[str] = set()
        try:
            answer = self._pool.request(
                request.method,
                httpcore2.URL(
                    scheme=b"http",
                    host=request.pod.encode(),
                    port=request.port,
                    target=request.path.encode(),
                ),
                headers=list(request.headers.items()),
                content=request.content,
                extensions={"timeout": timeouts, "trace": lambda event, _: events.add(event)},
            )
        except ForwardRefused as refused:
            return _passed_on(refused.response)
        except ForwardFailed as error:
            if "connection refused" not in str(error).lower():
                raise WayFailed(str(error), is_sent=SENDING in events) from None
            self.kept = "port-forward"
            raise PodNotListening(str(error)) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            raise  # the API server itself
        except (httpx2.TimeoutException, httpcore2.ConnectTimeout):
            raise WayFailed(f"no connection within {self._upgrade_seconds:g} s") from None
        except httpcore2.TimeoutException:
            words = f"no answer within {seconds:g} s"
            raise WayFailed(words, is_sent=SENDING in events, is_late=True) from None
        except (httpx2.TransportError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise WayFailed(str(error), is_sent=SENDING in events) from None
        server = [(name, value) for name, value in answer.headers if name.lower() == b"server"]
        return httpx2.Response(answer.status, headers=server, content=answer.content)

    def _proxied(self, request: PodRequest) -> httpx2.Response:
        where = f"api/v1/namespaces/{self._namespace}/pods/{request.pod}:{request.port}/proxy"
        try:
            answer = self._http.request(
                request.method,
                f"{where}{request.path}",
                content=request.content,
                headers=dict(request.headers),
            )
        except httpx2.ReadTimeout:
            words = f"no answer within {self._call_seconds:g} s"
            raise WayFailed(words, is_sent=True, is_late=True) from None
        is_pods = api_status(answer) is None and answer.status_code not in GATEWAY_ERRORS
        return answer if is_pods else _passed_on(answer)


def _may_try_again(request: PodRequest, failure: WayFailed, is_kept: bool) -> bool:
    """Another way, or the one that worked once more: its connection may have been closed."""
    if request.method not in SAFE:
        return not (is_kept or failure.is_sent)
    return not is_kept or (failure.is_sent and not failure.is_late)


def _passed_on(answer: httpx2.Response) -> httpx2.Response:
    """An answer that is not the pod's."""
    status = api_status(answer)
    if status is None:
        words = answer.text.strip()[:500] or answer.reason_phrase
        raise WayFailed(f"HTTP {answer.status_code}: {words}", answer.status_code)
    if answer.status_code in PASSED_ON:
        return answer
    raise WayFailed(status.message or status.reason or "no reason given", answer.status_code)


def api_status(answer: httpx2.Response) -> Status | None:
    """What the API server says about its error; None if the answer is another's."""
    if not answer.is_error:
        return None
    try:
        content = answer.json()
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("kind") != "Status":
        return None
    return cast(Status, Status.from_dict(content))
