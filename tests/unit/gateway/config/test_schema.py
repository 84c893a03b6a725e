"""The gateway's configuration: strict, and an error names the key, the value and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.address import socket_path
from fedrdma_fate.gateway.config.schema import GatewayConfig, load_config, parse_config, split_address
from fedrdma_fate.gateway.config.sizes import parse_byte_count
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from fedrdma_fate.wire.frames import MessageKey, Offer, encode_frame
from tests.support.sites import party

PEER = {"site": "b", "parties": ["host:2"], "address": "127.0.0.1:9"}


def document(**changes: Any) -> dict[str, Any]:
    return {"site": "a", "parties": ["9999"], "security": "off", **changes}


def refused(**changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(document(**changes))
    return caught.value


def test_the_least_configuration_takes_the_defaults() -> None:
    config = parse_config(document())
    assert config == GatewayConfig(site="a", parties=("9999",), security="off")


def test_a_bare_off_that_yaml_reads_as_false_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("site: a\nparties: ['9999']\nsecurity: off\n")
    assert load_config(path).security == "off"


@pytest.mark.parametrize(
    ("changes", "key", "suggestion"),
    [
        ({"modee": "grpc"}, "modee", "Did you mean 'mode'?"),
        ({"listen": {"contrl": "127.0.0.1:1"}}, "listen.contrl", "Did you mean 'control'?"),
        ({"memory": {"send_byte": 1}}, "memory.send_byte", "Did you mean 'send_bytes'?"),
        ({"peers": [PEER, {**PEER, "site": "c", "adress": "x"}]}, "peers[1].adress", "Did you mean 'address'?"),
        ({"zzz": 1}, "zzz", "Known: aggregate, chunk, durable, flow, limits"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one_that_exists(
    changes: dict[str, Any], key: str, suggestion: str
) -> None:
    error = refused(**changes)
    assert error.code is ErrorCode.CONFIG_UNKNOWN_KEY
    assert repr(key) in error.message
    assert suggestion in error.remedy


@pytest.mark.parametrize(
    ("changes", "key", "value", "remedy"),
    [
        ({"durable": True, "timeouts": {"restart": 0}}, "durable", True, "Without a restart there is no journal."),
        ({"durable": "yes please"}, "durable", "yes please", ""),
        ({"mode": "fast"}, "mode", "fast", "One of grpc, fedrdma, fedrdma-e, fedrdma-x."),
        ({"security": "tls"}, "security", "tls", "One of mtls, off."),
        ({"peers": [{**PEER, "transport": "ib"}]}, "peers[0].transport", "ib", "One of auto, verbs, udp, tcp, shm."),
        ({"parties": [9999]}, "parties[0]", 9999, "Put it in quotes."),
        ({"listen": {"control": "9370"}}, "listen.control", "9370", "Write host:port."),
        ({"listen": {"metrics": "127.0.0.1:99999"}}, "listen.metrics", "127.0.0.1:99999", "Write host:port."),
        ({"peers": [{**PEER, "address": "there"}]}, "peers.address", "there", "Write host:port."),
        ({"peers": [{**PEER, "data_hosts": ["10.0.0.2:9372"]}]}, "peers.data_hosts", "10.0.0.2:9372", "without a port"),
        ({"peers": [{**PEER, "data_hosts": ["gw:9372"]}]}, "peers.data_hosts", "gw:9372", "without a port"),
        ({"peers": [{**PEER, "data_hosts": ["10.0.0.0/8"]}]}, "peers.data_hosts", "10.0.0.0/8", "names or addresses"),
        ({"peers": [{**PEER, "data_hosts": ["10.0.0.256"]}]}, "peers.data_hosts", "10.0.0.256", "names or addresses"),
        ({"peers": [{**PEER, "data_hosts": ["0.0.0.0"]}]}, "peers.data_hosts", "0.0.0.0", "names or addresses"),
        ({"peers": [{**PEER, "data_hosts": [""]}]}, "peers.data_hosts", "", "names or addresses"),
        ({"peers": [{**PEER, "data_hosts": "gw"}]}, "peers[0].data_hosts", "gw", ""),
        ({"memory": {"send_bytes": "lots"}}, "memory.send_bytes", "lots", ""),
        ({"memory": {"receive_bytes": "1e9 GiB"}}, "memory.receive_bytes", "1e9 GiB", ""),
        ({"memory": {"receive_bytes": 2**70}}, "memory.receive_bytes", 2**70, ""),
        ({"chunk": 0}, "chunk", 0, ""),
        ({"chunk": "2GiB"}, "chunk", "2GiB", ""),
        ({"peers": [{**PEER, "chunk": 2**30 + 1}]}, "peers[0].chunk", 2**30 + 1, ""),
        ({"window": 0}, "window", 0, ""),
        ({"peers": [{**PEER, "window": "much"}]}, "peers[0].window", "much", ""),
        ({"trace": 5}, "trace", 5, ""),
        ({"tcp": {"streams": 0}}, "tcp.streams", 0, ""),
        ({"timeouts": {"idle": 0}}, "timeouts.idle", 0, ""),
        ({"timeouts": {"put": float("inf")}}, "timeouts.put", float("inf"), "At most 1000000 seconds."),
        ({"timeouts": {"put": float("nan")}}, "timeouts.put", float("nan"), ""),
        ({"site": ""}, "site", "", "Give the site a name"),
        ({"parties": []}, "parties", [], "List the FATE parties"),
        ({"parties": ["host:"]}, "parties", "host:", "Write `9999`, or `host:9999`"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_what_would_be_right(
    changes: dict[str, Any], key: str, value: object, remedy: str
) -> None:
    error = refused(**changes)
    assert error.code is ErrorCode.CONFIG_BAD_VALUE
    assert f"key {key!r} has the value {value!r}" in error.message
    assert remedy in error.remedy


def test_a_gateway_without_protection_has_to_be_asked_for() -> None:
    silent = document()
    del silent["security"]
    with pytest.raises(ConfigError) as caught:
        parse_config(silent)
    assert caught.value.code is ErrorCode.INSECURE_REFUSED
    assert "`security: off`" in caught.value.remedy


TLS = {"certificate": "/x/a.pem", "key": "/x/a.key", "authorities": ["/x/ca.pem"]}


def test_mutual_tls_is_the_default_and_needs_certificates() -> None:
    given = {"site": "a", "parties": ["9999"]}
    assert parse_config({**given, "tls": TLS}).security == "mtls"
    for key in TLS:
        lacking = {name: value for name, value in TLS.items() if name != key}
        with pytest.raises(ConfigError) as caught:
            parse_config({**given, "tls": lacking})
        assert caught.value.code is ErrorCode.INSECURE_REFUSED
        assert f"key 'tls.{key}' is missing" in caught.value.message
        assert "`fedrdma certs`" in caught.value.remedy


@pytest.mark.parametrize("key", ["control", "data", "grpc", "metrics"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "gateway.example"])
def test_without_protection_an_address_beyond_loopback_has_to_be_asked_for_twice(key: str, host: str) -> None:
    listen = {key: f"{host}:9370"}
    error = refused(listen=listen)
    assert error.code is ErrorCode.INSECURE_REFUSED
    assert f"listen.{key}" in error.message
    parse_config(document(listen=listen, security_off_beyond_loopback=True))
    parse_config({"site": "a", "parties": ["9999"], "tls": TLS, "listen": listen})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
def test_loopback_needs_no_protection(host: str) -> None:
    parse_config(document(listen={"control": f"{host}:9370"}))


def test_hosts_of_a_peer_are_names_or_addresses() -> None:
    listed = ["10.0.0.2", "fd00::2", "gw.bank-b.example", "nic_2", "gw.bank-b.example."]
    assert parse_config(document(peers=[{**PEER, "data_hosts": listed}])).peers[0].data_hosts == tuple(listed)


@pytest.mark.parametrize("key", ["site", "parties"])
def test_a_missing_key_is_named_with_what_to_write(key: str) -> None:
    incomplete = document()
    del incomplete[key]
    with pytest.raises(ConfigError) as caught:
        parse_config(incomplete)
    assert f"key '{key}' is missing" in caught.value.message
    assert f"`{key}: " in caught.value.remedy


def test_a_site_is_named_once() -> None:
    assert "twice" in refused(peers=[PEER, {**PEER, "parties": ["host:3"]}]).message
    assert "twice" in refused(peers=[{**PEER, "site": "a"}]).message


def test_a_party_lives_at_one_site() -> None:
    error = refused(peers=[{**PEER, "parties": ["9999"]}])
    assert "party '9999' is served by 'a' and by 'b'" in error.message


def test_rings_leave_half_of_the_receive_memory_to_others() -> None:
    error = refused(peers=[PEER], memory={"receive_bytes": "16MiB", "ring_slots": 3, "ring_slot_bytes": "4MiB"})
    assert "memory.ring_slots" in error.message
    assert "half" in error.remedy


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("site: [", "cannot read"),
        ("- site", "not a table of keys"),
        ("site: a\nsite: b\n", "the key 'site' comes twice"),
        ("listen: {control: x, control: y}", "the key 'control' comes twice"),
        ("5: 1", "Expected `str`"),
        ("site: 2001-99-99", "a value in it cannot be read"),
        ("site: !!int ''", "a value in it cannot be read"),
        ("[" * 1000, "a value in it cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text: str, trouble: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=trouble) as caught:
        load_config(path)
    assert caught.value.code in (ErrorCode.CONFIG_UNREADABLE, ErrorCode.CONFIG_BAD_VALUE)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        load_config(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("5", 5), ("4MiB", 4 * 2**20), ("1 GB", 10**9), ("1.5KiB", 1536), (" 2 kib ", 2048), ("1.001MB", 1001000)],
)
def test_sizes_are_bytes_or_numbers_with_a_unit(text: object, size: int) -> None:
    assert parse_byte_count(text) == size


@pytest.mark.parametrize("text", [True, -1, 0, "0", "-1", "MiB", "1 parsec", None, 1.5, "1e3", "0.1"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|between"):
        parse_byte_count(text)


def test_a_configured_chunk_size_goes_into_frames() -> None:
    chunk = parse_config(document(chunk="64KiB")).chunk.size_bytes
    assert chunk == 65536
    frame = encode_frame(
        Offer(
            transport="tcp",
            transfer=1,
            key=MessageKey("s", "n", "t", party("guest:1"), party("host:2")),
            kind="bytes",
            total_bytes=1,
            mode="fedrdma",
            grant=1,
            chunk_bytes=chunk,
            enable_bytes=0,
        )
    )
    assert frame


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("gateway.bank:65535", ("gateway.bank", 65535))],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address("listen.data", address) == parts


@pytest.mark.parametrize(
    "path", ["/run/x.sock", "/var/my files/x y.sock", "/" + "long/" * 100 + "x.sock"], ids=["short", "space", "long"]
)
def test_a_socket_may_lie_anywhere(path: str) -> None:
    assert socket_path(f"unix://{path}") == Path(path)


@pytest.mark.parametrize("address", ["unix://relative", "/run/x.sock", "unix:///" + "x" * 120])
def test_a_socket_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="unix:///absolute/path"):
        socket_path(address)


@pytest.mark.parametrize("seal", ["on", "integrity", True])
def test_sealing_without_proof_of_who_is_there_is_refused(seal: object) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(document(security="off", seal=seal))
    assert error.value.code is ErrorCode.SEAL_WITHOUT_TLS
    assert "'seal'" in error.value.message


@pytest.mark.parametrize("seal", [None, "off", False])
def test_without_security_nothing_is_sealed(seal: object) -> None:
    assert parse_config(document(security="off", seal=seal)).sealing == "off"
