"""The bytes of a forwarded port, however they are divided on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

from headway.kube.port_forward import FRAME_BYTES, ChannelFrames

PORT = (7461).to_bytes(2, "little")


def divided(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(content) + 1) for cut in cuts})
    ends = zip([0, *places], [*places, len(content)], strict=True)
    return [content[start:end] for start, end in ends if end > start]


def framed(server: Connection, message: bytes, cuts: list[int]) -> bytes:
    """One message, in as many frames."""
    pieces = divided(message, cuts)
    return b"".join(
        server.send(BytesMessage(piece, message_finished=number == len(pieces)))
        for number, piece in enumerate(pieces, 1)
    )


CUTS = st.lists(st.integers(0, 10_000), max_size=5)
MESSAGES = st.lists(st.tuples(st.binary(max_size=300), CUTS, st.booleans()), max_size=8)


@given(MESSAGES, st.lists(st.integers(0, 100_000), max_size=40))
def test_data_comes_out_whole(
    messages: list[tuple[bytes, list[int], bool]], cuts: list[int]
) -> None:
    server, wire = Connection(ConnectionType.SERVER), b""
    for channel in (b"\0", b"\1"):
        wire += framed(server, channel + PORT, [])
    for data, frame_cuts, is_pinged in messages:
        wire += server.send(Ping(b"?")) if is_pinged else b""
        wire += framed(server, b"\0" + data, frame_cuts)
    frames, replies = ChannelFrames(), b""
    for piece in divided(wire, cuts):
        replies += frames.receive(piece)
    assert bytes(frames.data) == b"".join(data for data, _, _ in messages)
    assert (frames.error, frames.is_over) == ("", False)
    server.receive_data(replies)
    assert len(list(server.events())) == sum(is_pinged for _, _, is_pinged in messages)


@given(st.binary(max_size=3 * FRAME_BYTES), CUTS)
def test_data_goes_in_whole(content: bytes, cuts: list[int]) -> None:
    server, received = Connection(ConnectionType.SERVER), b""
    frames, message = ChannelFrames(), b""
    for piece in divided(content, cuts):
        for frame in frames.sent(piece):
            assert len(frame) <= FRAME_BYTES + 20
            server.receive_data(frame)
            for event in server.events():
                assert isinstance(event, BytesMessage)
                message += bytes(event.data)
                if event.message_finished:
                    assert message[0] == 0
                    received, message = received + message[1:], b""
    assert received == content


@given(CUTS)
def test_an_error_is_known_when_it_is_whole(cuts: list[int]) -> None:
    server, frames = Connection(ConnectionType.SERVER), ChannelFrames()
    wire = framed(server, b"\1" + PORT, []) + framed(server, b"\1no route to host", cuts)
    for piece in divided(wire, cuts):
        assert frames.error == ""
        frames.receive(piece)
    assert frames.error == "no route to host"
    assert frames.data == b""


@pytest.mark.parametrize("event", [CloseConnection(1000), TextMessage("hello")])
def test_what_comes_after_the_end_is_not_data(event: Event) -> None:
    server, frames = Connection(ConnectionType.SERVER), ChannelFrames()
    frames.receive(server.send(BytesMessage(b"\0" + PORT)) + server.send(event))
    assert frames.is_over
    assert frames.data == b""


def test_nothing_is_sent_to_a_closed_side() -> None:
    server, frames = Connection(ConnectionType.SERVER), ChannelFrames()
    frames.receive(server.send(CloseConnection(1000)))
    with pytest.raises(LocalProtocolError):
        list(frames.sent(b"more"))


@given(st.binary(max_size=200), CUTS)
def test_noise_is_no_data_and_no_crash(noise: bytes, cuts: list[int]) -> None:
    frames = ChannelFrames()
    for piece in divided(noise, cuts):
        if not frames.is_over:
            frames.receive(piece)
    frames.receive(b"")
    assert frames.is_over
