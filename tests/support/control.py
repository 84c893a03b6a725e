"""Talks to a gateway's control port as others might."""

from __future__ import annotations

import socket
import ssl

from fedrdma_fate.gateway.peers.control_connection import LENGTH_BYTES
from fedrdma_fate.wire.frames import ControlFrame, Hello, decode_frame, encode_frame
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from tests.support.certificates import TestAuthority


def framed(frame: bytes) -> bytes:
    """A frame as it travels."""
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


def greeting(site: str, protocol: int = PROTOCOL_VERSION) -> bytes:
    """What a gateway of that name would say first, encoded."""
    hello = Hello(site, "x", protocol, "0", "host", ("host:2",), ("tcp", "grpc"), 1 << 20, exchange_key=b"k" * 32)
    return encode_frame(hello)


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


def client_context(
    authority: TestAuthority, name: str | None, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """TLS of somebody who dials: with the certificate of that name, or none, and of one version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if name is not None:
        context.load_cert_chain(authority.directory / f"{name}.pem", authority.directory / f"{name}.key")
    return context


def tls_conversation(address: str, context: ssl.SSLContext, *frames: bytes) -> list[ControlFrame]:
    """What a gateway answers to these frames, with TLS, until it ends the channel.

    Raises:
        ssl.SSLError: it refused the handshake.
    """
    with connect(address) as connection, context.wrap_socket(connection) as secured:
        for frame in frames:
            secured.sendall(framed(frame))
        return answers(secured)
