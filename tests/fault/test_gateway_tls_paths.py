"""Gateways with mutual TLS beside the control channel: the data path of mode `grpc`, and the metrics."""

from __future__ import annotations

import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fedrdma_fate.gateway.peers import channel_security
from fedrdma_fate.security.credentials import CredentialFiles, load_credentials
from fedrdma_fate.security.grpc_credentials import GrpcCredentials
from fedrdma_fate.transport.grpc import METHOD, SERVICE, TOKEN_KEY, GrpcSettings, GrpcTransport
from fedrdma_fate.wire.errors import TransportError
from tests.support.certificates import TestAuthority, now
from tests.support.connections import cut, strike
from tests.support.control import client_context
from tests.support.ports import ports_of_this_process
from tests.support.sites import InProcesses, Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(700_000)


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path / "tls")


def push_and_pull(sites: Sites, session: str = "s") -> None:
    with sites["a"].client(session) as a, sites["b"].client(session) as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        lease.commit("m", "t", [party("host:2")], "object")
        assert bytes(b.get("m", "t", party("guest:1"), timeout=20).buffer) == BODY


# --- mode grpc ---


def test_mode_grpc_moves_payloads_between_sites_with_certificates(tmp_path: Path, authority: TestAuthority) -> None:
    with start_gateways(LAYOUT, tmp_path, authority=authority, mode="grpc") as sites:
        push_and_pull(sites)
        (event,) = eventually(lambda: sites["b"].events("delivered"))
        assert (event["mode"], event["transport"]) == ("grpc", "grpc")


def test_a_grpc_data_path_that_is_lost_after_a_certificate_was_renewed_is_made_anew(
    tmp_path: Path, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_security, "CHECK_SECONDS", 0.05)
    with start_gateways(LAYOUT, tmp_path, authority=authority, mode="grpc") as sites:
        push_and_pull(sites)
        for name, site in sites.items():
            serial = f"{authority.issue(name).certificate.serial_number:x}"
            eventually(lambda site=site, serial=serial: site.status()["certificate"]["serial"] == serial)  # type: ignore[misc]
        control = {int(site.config["listen"]["control"].rpartition(":")[2]) for site in sites.values()}
        # both gateways are in this process
        assert strike(os.getpid(), lambda own, other: not control & {own, other}, cut)
        push_and_pull(sites, "next")
        assert {event["transport"] for event in sites["b"].events("delivered")} == {"grpc"}


def test_a_gateway_speaks_no_tls_1_2_on_any_port(tmp_path: Path, authority: TestAuthority) -> None:
    (port,) = ports_of_this_process(1)
    with start_gateways(
        LAYOUT, tmp_path, authority=authority, runner=InProcesses(), connected=False, mode="grpc"
    ) as sites:
        # the side that is dialled serves
        sites.runner.stop(sites["b"])
        sites["b"].config["peers"][0]["address"] = None
        sites["b"].config["listen"]["grpc"] = f"127.0.0.1:{port}"
        sites.runner.start(sites["b"])
        sites.wait_until_connected()
        push_and_pull(sites)
        for version, spoken in ((ssl.TLSVersion.TLSv1_3, True), (ssl.TLSVersion.TLSv1_2, False)):
            context = client_context(authority, "a", version=version)
            context.set_alpn_protocols(["h2"])
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                if spoken:
                    with context.wrap_socket(connection) as secured:
                        assert secured.version() == "TLSv1.3"
                else:
                    with pytest.raises(OSError):
                        context.wrap_socket(connection)


def credentials(authority: TestAuthority, site: str) -> GrpcCredentials:
    stem = authority.directory / site
    files = CredentialFiles(stem.with_suffix(".pem"), stem.with_suffix(".key"), (authority.path,))
    loaded = load_credentials(files, site, now())
    return GrpcCredentials(lambda: loaded)


@pytest.fixture
def served(authority: TestAuthority) -> Iterator[GrpcTransport]:
    for site in ("a", "b", "c"):
        authority.issue(site)
    transport = GrpcTransport(GrpcSettings(), credentials(authority, "a"))
    yield transport
    transport.close()


def der(authority: TestAuthority, site: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((authority.directory / f"{site}.pem").read_text())


def test_another_site_with_the_token_of_a_link_does_not_get_it(served: GrpcTransport, authority: TestAuthority) -> None:
    draft = served.open("passive", der(authority, "b"))
    token = bytes.fromhex(str(draft.address["token"]))
    codes = {}
    for site in ("c", "b"):
        channel_credentials, name = credentials(authority, site).for_channel(der(authority, "a"))
        options = (("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1))
        with grpc.secure_channel(f"127.0.0.1:{served.port}", channel_credentials, options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(()), metadata=((TOKEN_KEY, token),), timeout=5)
            try:
                next(call, None)
            except grpc.RpcError as error:
                codes[site] = error.code()
            call.cancel()
    assert codes["c"] is grpc.StatusCode.NOT_FOUND
    assert codes.get("b") is not grpc.StatusCode.NOT_FOUND
    draft.close()


def test_the_side_that_dials_takes_the_certificate_of_its_peer_alone(
    served: GrpcTransport, authority: TestAuthority
) -> None:
    passive = served.open("passive", der(authority, "b"))
    dialling = GrpcTransport(GrpcSettings(), credentials(authority, "b"))
    try:
        # a is there, and c is wanted
        draft = dialling.open("active", der(authority, "c"))
        with pytest.raises(TransportError):
            draft.connect(passive.address, 2)
        with pytest.raises(TransportError, match="not known"):
            dialling.open("active")
    finally:
        dialling.close()
        passive.close()


def test_without_a_certificate_nobody_comes_to_the_grpc_port(served: GrpcTransport, authority: TestAuthority) -> None:
    draft = served.open("passive", der(authority, "b"))
    roots = grpc.ssl_channel_credentials(authority.path.read_bytes())
    options = (("grpc.ssl_target_name_override", "gateway.fedrdma.invalid"),)
    for channel in (
        grpc.secure_channel(f"127.0.0.1:{served.port}", roots, options=options),
        grpc.insecure_channel(f"127.0.0.1:{served.port}"),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            next(channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(()), timeout=5))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    draft.close()


# --- metrics ---


def scrape(port: int, context: ssl.SSLContext) -> str:
    handler = urllib.request.HTTPSHandler(context=context)
    with urllib.request.build_opener(handler).open(f"https://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_metrics_beyond_loopback_are_for_the_site_itself(
    tmp_path: Path, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = ports_of_this_process(1)
    layout = {"a": ["guest:1"]}
    with start_gateways(layout, tmp_path, authority=authority, connected=False, listen={"metrics": f"0.0.0.0:{port}"}):
        assert "fedrdma_complaints" in scrape(port, client_context(authority, "a"))
        authority.issue("b")
        with pytest.raises(OSError):
            scrape(port, client_context(authority, "b"))
        eventually(lambda: "the metrics are for 'a' alone" in caplog.text)
        with pytest.raises(OSError):
            scrape(port, client_context(authority, None))
        with pytest.raises(OSError):
            scrape(port, client_context(authority, "a", version=ssl.TLSVersion.TLSv1_2))
        with pytest.raises(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10):
            pass
        # one that says nothing holds up nobody
        with socket.create_connection(("127.0.0.1", port)):
            assert "fedrdma_complaints" in scrape(port, client_context(authority, "a"))


def test_metrics_on_loopback_are_plain(tmp_path: Path, authority: TestAuthority) -> None:
    (port,) = ports_of_this_process(1)
    layout = {"a": ["guest:1"]}
    with (
        start_gateways(layout, tmp_path, authority=authority, connected=False, listen={"metrics": f"127.0.0.1:{port}"}),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer,
    ):
        assert b"fedrdma_complaints" in answer.read()
