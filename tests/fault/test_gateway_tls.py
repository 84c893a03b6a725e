"""Gateways with mutual TLS: peers by their certificates, and everybody else refused, logged and counted."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from fedrdma_fate.gateway.peers import channel_security, control_channel
from fedrdma_fate.gateway.peers.newcomers import BURST, PER_SECOND
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Goodbye, Ping, encode_frame
from tests.support.certificates import DAY, TestAuthority, now
from tests.support.control import (
    answers,
    client_context,
    connect,
    conversation,
    framed,
    greeting,
    tls_conversation,
)
from tests.support.sites import InThread, Sites, eventually, party, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
BODY = os.urandom(700_000)


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path / "tls")


@pytest.fixture
def sites(tmp_path: Path, authority: TestAuthority) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path, authority=authority) as running:
        yield running


def control(sites: Sites, site: str = "a") -> str:
    return str(sites[site].config["listen"]["control"])


def metrics(sites: Sites, site: str = "a") -> str:
    """What a gateway's metrics say."""
    runner = sites.runner
    assert isinstance(runner, InThread)
    assembly = runner.gateways[site]._assembly
    assert assembly is not None
    text: str = assembly.context.metrics.render()  # type: ignore[attr-defined]
    return text


def metric(sites: Sites, name: str) -> float | None:
    """The value of one without labels."""
    found = re.search(rf"^{name} (\S+)$", metrics(sites), re.M)
    return None if found is None else float(found[1])


def refused(sites: Sites, site: str = "a") -> dict[str, float]:
    """How many were refused, by the reason, as the metrics of a gateway count it."""
    return {
        reason: float(count)
        for reason, count in re.findall(
            r'fedrdma_complaints_total\{about="[^"]*",kind="refused channel: ([^"]*)"\} (\S+)', metrics(sites, site)
        )
    }


def still_works(sites: Sites) -> None:
    assert sites["a"].connected()
    with sites["a"].client("s") as a, sites["b"].client("s") as b:
        lease = a.lease(len(BODY))
        lease.buffer[:] = BODY
        name = f"m{os.urandom(4).hex()}"
        lease.commit(name, "t", [party("host:2")], "object")
        assert bytes(b.get(name, "t", party("guest:1"), timeout=20).buffer) == BODY


def test_two_sites_know_each_other_by_their_certificates(sites: Sites) -> None:
    still_works(sites)
    runner = sites.runner
    assert isinstance(runner, InThread)
    identities = {}
    for name, gateway in runner.gateways.items():
        assert gateway._assembly is not None
        (peer,) = gateway._assembly.peers.values()
        identities[name] = peer.identity
    a, b = identities["a"], identities["b"]
    assert a is not None
    assert b is not None
    assert (a.site, b.site) == ("b", "a")
    assert (a.certificate, a.own_certificate) == (b.own_certificate, b.certificate)
    assert len(a.chain) == 2


def test_a_certificate_that_ends_soon_is_told_at_start_and_the_metrics_have_its_end(
    tmp_path: Path, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    with start_gateways(LAYOUT, tmp_path, authority=authority) as sites:
        eventually(lambda: caplog.text.count("this gateway's certificate ends at") == len(LAYOUT))
        end = x509.load_pem_x509_certificate((authority.directory / "a.pem").read_bytes()).not_valid_after_utc
        assert metric(sites, "fedrdma_certificate_end_timestamp_seconds") == end.timestamp()


def test_a_certificate_that_holds_for_long_is_not_spoken_of(
    tmp_path: Path, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    with start_gateways(LAYOUT, tmp_path, authority=authority, connected=False) as sites:
        for name, site in sites.items():
            sites.runner.stop(site)
            authority.issue(name, valid=40 * DAY)
        caplog.clear()
        for site in sites.values():
            sites.runner.start(site)
        sites.wait_until_connected()
        assert "this gateway's certificate" not in caplog.text


def test_without_certificates_the_metrics_have_no_end_of_one(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path) as sites:
        assert metric(sites, "fedrdma_certificate_end_timestamp_seconds") is None


# --- handshakes that fail ---


def shake_hands(sites: Sites, context: ssl.SSLContext) -> str:
    """The alert by which a gateway refuses."""
    with pytest.raises(ssl.SSLError) as caught:
        tls_conversation(control(sites), context, greeting("b"))
    return str(caught.value.reason)


def test_a_certificate_of_another_authority_is_refused(
    sites: Sites, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = TestAuthority(tmp_path / "other")
    other.issue("b")
    assert "UNKNOWN_CA" in shake_hands(sites, client_context(other, "b"))
    eventually(lambda: refused(sites) == {"wrong-authority": 1})
    eventually(lambda: "[FR507] the other side's certificate is not believed" in caplog.text)
    still_works(sites)


def test_a_certificate_that_has_expired_is_refused(
    sites: Sites, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.issue("b", at=now() - 2 * DAY, name="old")
    assert "EXPIRED" in shake_hands(sites, client_context(authority, "old"))
    eventually(lambda: refused(sites) == {"expired": 1})
    eventually(lambda: "the clock here says" in caplog.text)
    still_works(sites)


def test_a_certificate_that_is_not_valid_yet_is_refused_and_the_clocks_are_named(
    sites: Sites, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.issue("b", at=now() + DAY, name="early")
    assert "BAD_CERTIFICATE" in shake_hands(sites, client_context(authority, "early"))
    eventually(lambda: refused(sites) == {"not-yet-valid": 1})
    eventually(lambda: "Compare the clocks of both sites." in caplog.text)


def test_tls_1_2_is_refused(sites: Sites, authority: TestAuthority, caplog: pytest.LogCaptureFixture) -> None:
    context = client_context(authority, "b", version=ssl.TLSVersion.TLSv1_2)
    assert "PROTOCOL_VERSION" in shake_hands(sites, context)
    eventually(lambda: refused(sites) == {"tls-version": 1})
    eventually(lambda: "[FR507] the other side has no TLS 1.3" in caplog.text)


def test_nobody_comes_in_without_a_certificate(
    sites: Sites, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    assert "CERTIFICATE_REQUIRED" in shake_hands(sites, client_context(authority, None))
    eventually(lambda: refused(sites) == {"no-certificate": 1})
    eventually(lambda: "[FR507] the other side has shown no certificate" in caplog.text)
    still_works(sites)


@pytest.mark.parametrize("said", [framed(greeting("b")), b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
def test_who_speaks_no_tls_is_refused(sites: Sites, said: bytes) -> None:
    with connect(control(sites)) as connection:
        connection.sendall(said)
        while connection.recv(1 << 16):
            pass
    eventually(lambda: sum(refused(sites).values()) == 1)
    assert set(refused(sites)) <= {"no-tls", "handshake"}
    still_works(sites)


def test_a_handshake_that_takes_too_long_is_ended(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "GREETING_SECONDS", 0.1)
    with connect(control(sites)) as connection:
        assert connection.recv(1) == b""
    eventually(lambda: refused(sites) == {"too-slow": 1})


def test_a_connection_that_ends_within_the_handshake_is_counted(sites: Sites) -> None:
    connect(control(sites)).close()
    eventually(lambda: refused(sites) == {"cut": 1})


# --- greetings ---


@pytest.mark.parametrize(
    ("certificate", "first", "reason", "code"),
    [
        ("b", greeting("c"), "unknown-site", ErrorCode.PEER_UNKNOWN),
        ("stranger", greeting("stranger"), "unknown-site", ErrorCode.PEER_UNKNOWN),
        ("stranger", greeting("b"), "unknown-site", ErrorCode.PEER_UNKNOWN),
        ("b", b"\xc1garbage", "malformed", ErrorCode.MALFORMED_FRAME),
        ("b", encode_frame(Ping(0.0)), "malformed", ErrorCode.MALFORMED_FRAME),
        ("b", bytes(20_000), "malformed", ErrorCode.MALFORMED_FRAME),
        ("b", greeting("b", 999), "protocol", ErrorCode.PROTOCOL_VERSION),
    ],
    ids=["unknown", "no-peer", "no-peer-says-b", "garbage", "no-greeting", "too-long", "version"],
)
def test_who_does_not_greet_as_the_peer_of_its_certificate_is_told_why(
    sites: Sites,
    authority: TestAuthority,
    certificate: str,
    first: bytes,
    reason: str,
    code: ErrorCode,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if certificate != "b":
        authority.issue(certificate)
    (farewell,) = tls_conversation(control(sites), client_context(authority, certificate), first)
    assert isinstance(farewell, Goodbye)
    assert code.value in farewell.reason
    eventually(lambda: refused(sites) == {reason: 1})
    eventually(lambda: f"[{code.value}]" in caplog.text)
    still_works(sites)


def test_a_peer_that_greets_with_another_peers_name_is_refused(tmp_path: Path, authority: TestAuthority) -> None:
    layout = {**LAYOUT, "c": ["arbiter:3"]}
    with start_gateways(layout, tmp_path, authority=authority) as sites:
        (farewell,) = tls_conversation(control(sites), client_context(authority, "c"), greeting("b"))
        assert isinstance(farewell, Goodbye)
        assert "[FR508] who greets as 'b' has the certificate of the site 'c', not of 'b'" in farewell.reason
        assert refused(sites) == {"wrong-site": 1}
        still_works(sites)


@pytest.mark.parametrize("names", [[], ["a", "b"]], ids=["none", "two"])
def test_a_certificate_that_does_not_name_one_site_is_refused(
    sites: Sites, authority: TestAuthority, names: list[str]
) -> None:
    authority.issue(names, name="odd")
    (farewell,) = tls_conversation(control(sites), client_context(authority, "odd"), greeting("b"))
    assert isinstance(farewell, Goodbye)
    assert ErrorCode.PEER_IDENTITY.value in farewell.reason
    assert refused(sites) == {"wrong-site": 1}


def test_who_has_a_certificate_and_never_greets_is_told_so(
    sites: Sites, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "GREETING_SECONDS", 0.3)
    (farewell,) = tls_conversation(control(sites), client_context(authority, "b"))
    assert isinstance(farewell, Goodbye)
    assert "does not answer within 0.3 s" in farewell.reason
    assert refused(sites) == {"no-greeting": 1}
    still_works(sites)


# --- two gateways that do not agree ---


def troubles(sites: Sites) -> list[str]:
    return [sites[name].status()["peers"][0]["last_error"] for name in ("a", "b")]


def restart(sites: Sites) -> None:
    for site in sites.values():
        sites.runner.stop(site)
    for site in sites.values():
        sites.runner.start(site)


def test_clocks_a_day_apart_are_named_on_both_sides(
    tmp_path: Path, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedrdma_fate.security import credentials

    with start_gateways(LAYOUT, tmp_path, authority=authority) as sites:
        # b's certificate was made by a clock that is a day ahead, and b's own does not mind
        monkeypatch.setattr(credentials, "_check_time", lambda *_: None)
        authority.issue("b", at=now() + DAY)
        caplog.clear()
        restart(sites)
        eventually(lambda: all("FR507" in trouble for trouble in troubles(sites)))
        seen, told = troubles(sites)
        assert "not yet valid" in seen
        assert "the clock here says" in seen
        assert "compare the clocks" in told
        assert "Ours is valid from" in told


def test_one_side_with_tls_and_the_other_without_both_say_so(tmp_path: Path, authority: TestAuthority) -> None:
    with start_gateways(LAYOUT, tmp_path, authority=authority) as sites:
        sites["b"].config["security"] = "off"
        restart(sites)
        eventually(lambda: "speaks no TLS" in troubles(sites)[0] or "FR507" in troubles(sites)[0])
        eventually(lambda: troubles(sites)[1] != "not connected yet")


def test_the_gateway_of_another_site_at_a_peers_address_is_not_spoken_to(
    tmp_path: Path, authority: TestAuthority
) -> None:
    layout = {**LAYOUT, "c": ["arbiter:3"]}
    with start_gateways(layout, tmp_path, authority=authority, connected=False) as sites:
        for site in sites.values():
            sites.runner.stop(site)
        sites["a"].config["peers"][0]["address"] = control(sites, "c")
        sites["a"].config["peers"][1]["address"] = None
        for name in ("b", "c"):
            sites[name].config["peers"] = [{"site": "a", "parties": ["guest:1"]}]
        for site in sites.values():
            sites.runner.start(site)
        eventually(lambda: "FR508" in troubles(sites)[0])
        assert "has the certificate of the site 'c', not of 'b'" in troubles(sites)[0]


# --- while it goes on ---


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are looked at often."""
    monkeypatch.setattr(channel_security, "CHECK_SECONDS", 0.05)


def test_a_channel_ends_when_the_certificate_of_its_peer_is_revoked(
    tmp_path: Path, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a minute, as gateways are shipped."""
    revocations = authority.revoke()
    authority.issue("b", name="b-first")
    with start_gateways(LAYOUT, tmp_path, authority=authority, connected=False) as sites:
        for site in sites.values():
            sites.runner.stop(site)
            site.config["tls"]["revocation_lists"] = [str(revocations)]
        pair = authority.issue("b")
        for site in sites.values():
            sites.runner.start(site)
        sites.wait_until_connected()
        still_works(sites)
        authority.revoke(pair)
        eventually(lambda: "[FR509] the control channel of b ends" in caplog.text, 60)
        eventually(lambda: "was revoked" in caplog.text)
        # and it does not come back
        eventually(lambda: refused(sites).get("revoked", 0) >= 1, 30)
        assert not sites["a"].connected()
        # until it has a new one, which it takes up itself
        authority.issue("b")
        sites.wait_until_connected()
        still_works(sites)


@pytest.mark.usefixtures("soon")
def test_a_channel_ends_when_the_certificate_of_its_peer_expires(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    runner = sites.runner
    assert isinstance(runner, InThread)
    assembly = runner.gateways["a"]._assembly
    assert assembly is not None
    assert assembly.identity_watch is not None
    assembly.identity_watch._credentials.clock = lambda: now() + 2 * DAY
    eventually(lambda: "[FR509] the control channel of b ends: its certificate expired" in caplog.text)
    assembly.identity_watch._credentials.clock = now
    sites.wait_until_connected()
    still_works(sites)


@pytest.mark.usefixtures("soon")
def test_an_authority_that_is_replaced_under_way_ends_channels_of_the_old_one_and_no_message_is_lost(
    sites: Sites, authority: TestAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sites["a"].client() as a, sites["b"].client() as b:
        new = TestAuthority(tmp_path / "new")
        # first both are believed, then sites get new certificates, then the old one is not any more
        authority.path.write_bytes(authority.path.read_bytes() + new.path.read_bytes())
        for name in ("a", "b"):
            pair = new.issue(name)
            (authority.directory / f"{name}.key").write_bytes(pair.key_pem)
            (authority.directory / f"{name}.pem").write_bytes(pair.certificate_pem)
        eventually(lambda: sites["a"].connected())
        still_works(sites)
        authority.path.write_bytes(new.path.read_bytes())
        a.put_inline("m", "t", [party("host:2")], "bytes", b"while it changes")
        assert bytes(b.get("m", "t", party("guest:1"), timeout=20).buffer) == b"while it changes"
        eventually(lambda: "no authority of ours vouches for it any more" in caplog.text)
        sites.wait_until_connected()
        still_works(sites)


@pytest.mark.usefixtures("soon")
def test_new_files_that_will_not_do_are_told_and_the_old_ones_are_kept(
    sites: Sites, authority: TestAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.issue("b", name="a")
    eventually(lambda: "new files are not used, the ones before are kept: [FR108]" in caplog.text)
    sites.runner.stop(sites["b"])
    sites.runner.start(sites["b"])
    sites.wait_until_connected()
    still_works(sites)


# --- many of them ---


def test_1200_idle_connections_take_few_descriptors_and_hold_up_no_peer(sites: Sites) -> None:
    before = len(os.listdir("/proc/self/fd"))
    idle = []
    try:
        begun = time.monotonic()
        for _ in range(1200):
            idle.append(connect(control(sites)))
        # the idle ones are ours too: this end of each, and 64 at most of the gateway's
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 1200 + 64 + 10)
        # a busy host takes its time to make so many, and as many more may come
        eventually(lambda: refused(sites).get("too-often", 0) >= 1200 - BURST - PER_SECOND * (time.monotonic() - begun))
        still_works(sites)
        # a peer that comes from another address comes in at once
        sites.runner.stop(sites["b"])
        sites.runner.start(sites["b"])
        sites.wait_until_connected()
        still_works(sites)
    finally:
        for connection in idle:
            connection.close()


def test_without_tls_the_limits_are_the_same(tmp_path: Path) -> None:
    with start_gateways(LAYOUT, tmp_path) as sites:
        (farewell,) = conversation(control(sites), bytes(20_000))
        assert isinstance(farewell, Goodbye)
        assert "FR201" in farewell.reason
        with connect(control(sites)) as connection:
            connection.sendall(b"\x16\x03\x01\x00\xff\x01")
            (farewell,) = answers(connection)
        assert isinstance(farewell, Goodbye)
        assert "speaks TLS" in farewell.reason
        eventually(lambda: refused(sites) == {"malformed": 2})
        still_works(sites)
