"""Talks to a gateway's control port as others might."""

from __future__ import annotations

import socket
import ssl

from fedrdma_fate.gateway.peers.control_connection import LENGTH_BYTES
from fedrdma_fate.wire.frames import ControlFrame, Hello, decode_frame, encode_frame
from fedrdma_fate.wire.header import PROTOCOL_VERSION


def framed(frame: bytes) -> bytes:
    """A frame as it travels."""
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


def greeting(site: str, protocol: int = PROTOCOL_VERSION) -> bytes:
    """What a gateway of that name would say first, encoded."""
    return encode_frame(Hello(site, "x", protocol, "0", "host", ("host:2",), ("tcp", "grpc"), 1 << 20))


def connect(address: str, source: str = "127.0.0.1", timeout: float = 10.0) -> socket.socket:
    """A connection to host:port, from an address of this host."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout, source_address=(source, 0))


def answers(connection: socket.socket | ssl.SSLSocket) -> list[ControlFrame]:
    """All frames until the gateway ends the channel."""
    received = bytearray()
    while chunk := connection.recv(1 << 16):
        received += chunk
    frames = []
    while received:
        end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "big")
        frames.append(decode_frame(bytes(received[LENGTH_BYTES:end])))
        del received[:end]
    return frames


def conversation(address: str, *frames: bytes) -> list[ControlFrame]:
    """What a gateway answers to these frames, without TLS, until it ends the channel."""
    with connect(address) as connection:
        for frame in frames:
            connection.sendall(framed(frame))
        return answers(connection)
