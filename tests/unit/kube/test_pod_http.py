"""Requests to pods, over the API server's port-forward or proxy, whichever works."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx2
import pytest

from headway.errors import HeadwayError, NotFound
from headway.http_server import TEXT, Answer, HttpRequest
from headway.kube.api_errors import ClusterUnreachable, PodUnreachable, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.pod_http import NoWayToPod, PodAnswerLost, PodHttp, PodRequest
from support.fake_kube import READY, FakeKube, fake_kube
from support.fake_port_forward import REFUSED

POD = "headway-it-coordinator-x"
POD_PATH = f"/api/v1/namespaces/ml/pods/{POD}"
LARGE = bytes(range(256)) * 4096
BLOCKED = (503, "error trying to reach service: dial tcp 10.1.2.3:7461: i/o timeout")


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        pod = {"metadata": {"name": POD, "labels": {}}, "spec": {"containers": []}}
        kube.put(POD_PATH, {**pod, "status": READY})
        kube.serve_pages({"/hello": lambda: (TEXT, b"hello"), "/large": lambda: (TEXT, LARGE)})
        yield kube


@pytest.fixture
def client(kube: FakeKube) -> KubeClient:
    return KubeClient.from_kubeconfig(None, "ml")


def asked(client: KubeClient, path: str = "/hello", pod: str = POD) -> bytes:
    return client.request_to_pod(pod, 7461, path)


def ways(kube: FakeKube) -> list[str]:
    """Of all requests to the pod."""
    return ["proxy" if "/proxy/" in call else call.split()[0].lower() for call in kube.calls]


def test_it_goes_by_port_forward(kube: FakeKube, client: KubeClient) -> None:
    assert asked(client) == b"hello"
    assert asked(client, "/large") == LARGE
    with pytest.raises(NotFound, match="no page /none"):
        asked(client, "/none")
    assert ways(kube) == ["forward"] * 3


@pytest.mark.parametrize("frame_bytes", [1, 7, 2**17])
def test_an_answer_in_pieces_is_whole(kube: FakeKube, client: KubeClient, frame_bytes: int) -> None:
    kube.port_forward.frame_bytes, kube.port_forward.pings = frame_bytes, True
    assert asked(client) == b"hello"


@pytest.mark.parametrize("code", [400, 403, 500, 502])
def test_by_proxy_where_port_forward_is_refused(
    kube: FakeKube, client: KubeClient, code: int
) -> None:
    kube.port_forward.refusal = (code, "no")
    assert asked(client) == b"hello"
    assert asked(client) == b"hello"
    assert ways(kube) == ["forward", "proxy", "proxy"], "the way that worked is kept"


def test_the_other_way_is_tried_when_the_kept_one_fails(kube: FakeKube, client: KubeClient) -> None:
    kube.port_forward.refusal = (403, "no")
    assert asked(client) == b"hello"
    kube.port_forward.refusal, kube.proxy_error = None, BLOCKED
    with pytest.raises(PodUnreachable):
        asked(client)
    assert asked(client) == b"hello"
    assert ways(kube)[-1] == "forward"


def test_the_other_way_is_tried_at_once_when_a_right_is_taken_away(
    kube: FakeKube, client: KubeClient
) -> None:
    assert asked(client) == b"hello"
    kube.port_forward.refusal = (403, "no")
    assert asked(client) == b"hello"
    assert asked(client) == b"hello"
    assert ways(kube) == ["forward", "forward", "forward", "proxy", "proxy"]


def test_neither_way_says_why(kube: FakeKube, client: KubeClient) -> None:
    kube.port_forward.refusal, kube.proxy_error = (403, "you may not get pods/portforward"), BLOCKED
    with pytest.raises(PodUnreachable) as caught:
        asked(client)
    assert str(caught.value) == (
        f"pod {POD} cannot be reached: port-forward: you may not get pods/portforward; proxy: "
        "error trying to reach service: dial tcp 10.1.2.3:7461: i/o timeout"
    )


def test_without_rights_the_administrator_is_to_be_asked(
    kube: FakeKube, client: KubeClient
) -> None:
    kube.forbidden.add(POD_PATH)
    with pytest.raises(RequestRefused) as caught:
        asked(client)
    assert caught.value.hint == (
        "ask the administrator of the namespace for pods/portforward: get and create"
    )


def test_a_pod_that_does_not_listen_yet_is_not_asked_by_proxy(
    kube: FakeKube, client: KubeClient
) -> None:
    kube.port_forward.error = REFUSED
    with pytest.raises(ClusterUnreachable, match="does not listen yet") as caught:
        asked(client)
    assert not isinstance(caught.value, PodUnreachable)
    kube.port_forward.error = ""
    assert asked(client) == b"hello"
    assert ways(kube) == ["forward", "forward"]


def test_a_machine_that_cannot_forward_is_gone_around(kube: FakeKube, client: KubeClient) -> None:
    kube.port_forward.error = "socat not found"
    assert asked(client) == b"hello"
    assert ways(kube) == ["forward", "proxy"]


def test_a_pod_that_is_gone_is_not_found(kube: FakeKube, client: KubeClient) -> None:
    with pytest.raises(NotFound, match="other/portforward not found"):
        asked(client, pod="other")
    assert ways(kube) == ["forward"]


def test_an_api_server_that_is_away_is_no_matter_of_the_way(
    kube: FakeKube, client: KubeClient
) -> None:
    kube.is_away = True
    with pytest.raises(HeadwayError, match="the API server does not answer") as caught:
        asked(client)
    assert re.search(r" \(http://127\.0\.0\.1:\d+\)$", caught.value.message)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("is_silent", "port-forward: no connection within 0.3 s"),
        ("is_mute", "port-forward: no answer within 0.3 s"),
        ("closes_early", "port-forward: Server disconnected without sending a response."),
    ],
)
def test_silence_has_a_deadline(kube: FakeKube, tmp_path: Path, fault: str, words: str) -> None:
    setattr(kube.port_forward, fault, True)
    kube.proxy_error = BLOCKED
    port = (tmp_path / "kubeconfig").read_text().partition("127.0.0.1:")[2].partition('"')[0]
    began = time.monotonic()
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as http:
        pod_http = PodHttp(http, "ml", call_seconds=0.3, upgrade_seconds=0.3)
        with pytest.raises(NoWayToPod) as caught:
            pod_http.request(PodRequest(POD, 7461, "/hello"))
    assert str(caught.value) == f"{words}; proxy: {BLOCKED[1]}"
    assert time.monotonic() - began < 60  # of 0.6 s, and not for ever


def test_many_threads_ask_at_once(kube: FakeKube, client: KubeClient) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda _: asked(client, "/large"), range(64)))
    assert set(answers) == {LARGE}
    assert set(ways(kube)) == {"forward"}


def num_written(kube: FakeKube) -> list[str]:
    """The pod's resource, which counts what it is asked to do."""
    written: list[str] = []

    def work(request: HttpRequest) -> Answer:
        written.append(request.method)
        return TEXT, b""

    kube.serve_pages({}, {"work": work})
    return written


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_what_was_sent_is_not_sent_again_by_proxy(
    kube: FakeKube, client: KubeClient, method: str
) -> None:
    written = num_written(kube)
    kube.port_forward.closes_early = True
    with pytest.raises(ClusterUnreachable, match="was asked and did not answer") as caught:
        client.request_to_pod(POD, 7461, "/work/", method, b"")
    assert not isinstance(caught.value, PodUnreachable)
    assert ways(kube) == ["forward"]
    kube.port_forward.closes_early = False
    kube.port_forward.refusal = (403, "no")
    client.request_to_pod(POD, 7461, "/work/", method, b"")
    assert written == [method], "refused before it was sent: by proxy"


def test_a_question_is_asked_once_more_on_a_fresh_connection(
    kube: FakeKube, client: KubeClient
) -> None:
    assert asked(client) == b"hello"
    kube.port_forward.num_to_close = 1
    assert asked(client) == b"hello"
    assert set(ways(kube)) == {"forward"}


def test_a_pod_that_does_not_answer_in_time_was_reached(kube: FakeKube, tmp_path: Path) -> None:
    is_over = Event()

    def slow() -> Answer:
        is_over.wait(30)
        return TEXT, b"late"

    kube.serve_pages({"/hello": lambda: (TEXT, b"hello"), "/slow": slow})
    port = (tmp_path / "kubeconfig").read_text().partition("127.0.0.1:")[2].partition('"')[0]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as http:
        pod_http = PodHttp(http, "ml", call_seconds=0.5)
        pod_http.request(PodRequest(POD, 7461, "/hello"))
        with pytest.raises(PodAnswerLost, match=r"^port-forward: no answer within 0.5 s$"):
            pod_http.request(PodRequest(POD, 7461, "/slow"))
        is_over.set()
    assert set(ways(kube)) == {"forward"}


@pytest.mark.parametrize("code", [502, 504])
def test_a_gateways_error_is_no_answer_of_the_pod(
    kube: FakeKube, client: KubeClient, code: int
) -> None:
    kube.port_forward.refusal, kube.gateway_error = (400, "no"), code
    with pytest.raises(PodUnreachable, match=f"proxy: HTTP {code}"):
        asked(client)
    kube.port_forward.refusal = None
    assert asked(client) == b"hello", "the proxy is not kept"
