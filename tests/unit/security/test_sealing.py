"""What was sealed for one place is opened there, by the peer, and nowhere else by nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.ports import SealBrokenError
from fedrdma_fate.security.ciphers import AES, CHACHA, agreed_cipher, own_ciphers
from fedrdma_fate.security.key_schedule import DirectionKeys
from fedrdma_fate.security.nonces import NonceCounter, NonceError
from fedrdma_fate.security.sealing import AttemptSealer, PathOpener, PathSealer, Seal
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD, Introduction, unpack_introduction

KEYS = DirectionKeys(bytes(32), bytes(range(32)), bytes(32))
MESSAGE = b"m" * 32
DATA = bytes(range(256)) * 40
PLACE = b"the place"
KINDS: list[tuple[str, Seal]] = [(AES, "on"), (AES, "integrity"), (CHACHA, "on"), (CHACHA, "integrity")]

pytestmark = pytest.mark.parametrize(("cipher", "seal"), KINDS, ids=lambda value: str(value))


def sealed(sealer: AttemptSealer, data: bytes = DATA, place: bytes = PLACE) -> bytearray:
    room = bytearray(len(data) + RECORD_OVERHEAD)
    sealer.seal(place, memoryview(data), memoryview(room))
    return room


def opened(
    opener: PathOpener, introduction: bytes, record: bytes | bytearray, grant: int = 7, place: bytes = PLACE
) -> bytes:
    into = bytearray(b"\xee" * (len(record) - RECORD_OVERHEAD))
    try:
        opener.open(grant, introduction, place, memoryview(record), memoryview(into))
    except SealBrokenError:
        assert into in (bytes(len(into)), b"\xee" * len(into)), "what nobody vouches for was left lying"
        raise
    return bytes(into)


def test_what_was_sealed_is_opened_in_any_order(cipher: str, seal: Seal) -> None:
    sealer, opener = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE), PathOpener(KEYS, cipher, seal)
    payloads = [b"", b"x", DATA, bytes(100_000)]
    records = [sealed(sealer, payload) for payload in payloads]
    for payload, record in reversed(list(zip(payloads, records, strict=True))):
        assert opened(opener, sealer.introduction, record) == payload
    assert not opener.take_refused()


def test_only_encryption_hides_the_bytes(cipher: str, seal: Seal) -> None:
    record = sealed(PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE))
    assert (DATA in record) == (seal == "integrity")


def test_the_same_bytes_sealed_twice_look_different(cipher: str, seal: Seal) -> None:
    sealer = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE)
    one, other = sealed(sealer), sealed(sealer)
    assert one[:8] != other[:8]
    assert one[-16:] != other[-16:]


def test_any_changed_bit_is_noticed(cipher: str, seal: Seal) -> None:
    sealer, opener = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE), PathOpener(KEYS, cipher, seal)
    record = sealed(sealer, b"sixteen bytes or")
    for at in range(len(record)):
        changed = bytearray(record)
        changed[at] ^= 1
        with pytest.raises(SealBrokenError, match="wrong tag"):
            opened(opener, sealer.introduction, changed)
    assert opener.take_refused() == {"forged": len(record)}
    assert opened(opener, sealer.introduction, record) == b"sixteen bytes or"


def test_a_record_is_of_its_place_grant_transfer_attempt_and_message_alone(cipher: str, seal: Seal) -> None:
    path = PathSealer(KEYS, cipher, seal)
    sealer, opener = path.begin(3, 7, MESSAGE), PathOpener(KEYS, cipher, seal)
    record = sealed(sealer)
    about = unpack_introduction(sealer.introduction)
    others = [about._replace(transfer=4), about._replace(attempt=2), about._replace(message=b"n" * 32)]
    for introduction in others:
        with pytest.raises(SealBrokenError):
            opened(opener, introduction.pack(), record)
    with pytest.raises(SealBrokenError):
        opened(opener, sealer.introduction, record, grant=8)
    with pytest.raises(SealBrokenError):
        opened(opener, sealer.introduction, record, place=b"the placf")
    with pytest.raises(SealBrokenError):
        opened(opener, path.begin(3, 7, MESSAGE).introduction, record)
    assert opener.take_refused() == {"forged": 6}


def test_one_grant_takes_one_attempt_of_one_transfer(cipher: str, seal: Seal) -> None:
    path, opener = PathSealer(KEYS, cipher, seal), PathOpener(KEYS, cipher, seal)
    first, second = path.begin(3, 7, MESSAGE), path.begin(4, 7, MESSAGE)
    opened(opener, first.introduction, sealed(first))
    with pytest.raises(SealBrokenError, match="another transfer"):
        opened(opener, second.introduction, sealed(second))
    assert opener.is_of(7, 3, MESSAGE)
    assert opener.take_refused() == {"other-transfer": 1}
    assert not opener.is_of(7, 4, MESSAGE)
    assert not opener.is_of(7, 3, b"n" * 32)
    assert opener.take_refused() == {"other-transfer": 2}
    opener.forget(7)
    assert opener.is_of(7, 4, MESSAGE)
    assert opened(opener, second.introduction, sealed(second)) == DATA


def test_another_peers_key_opens_nothing(cipher: str, seal: Seal) -> None:
    sealer = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE)
    opener = PathOpener(KEYS._replace(chunks=bytes(32)), cipher, seal)
    with pytest.raises(SealBrokenError, match="wrong tag"):
        opened(opener, sealer.introduction, sealed(sealer))


def test_what_is_shorter_than_its_tag_or_has_another_length_is_refused(cipher: str, seal: Seal) -> None:
    sealer, opener = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE), PathOpener(KEYS, cipher, seal)
    record = sealed(sealer, b"")
    for bad in (record[:-1], b"", record + b"x"):
        with pytest.raises(SealBrokenError, match="wrong length"):
            opener.open(7, sealer.introduction, PLACE, memoryview(bad), memoryview(bytearray()))
    with pytest.raises(SealBrokenError, match="wrong length"):
        opener.open(7, b"short", PLACE, memoryview(record), memoryview(bytearray()))


def test_a_key_that_is_used_up_seals_nothing_more(cipher: str, seal: Seal) -> None:
    fresh = PathSealer(KEYS, cipher, seal).begin(3, 7, MESSAGE)
    sealer = AttemptSealer(fresh._records, fresh.introduction, NonceCounter(most=1), fresh._acknowledgements)
    sealed(sealer)
    room = bytearray(1 + RECORD_OVERHEAD)
    with pytest.raises(NonceError):
        sealer.seal(PLACE, memoryview(b"x"), memoryview(room))
    assert not any(room)


def test_no_two_attempts_have_the_same_introduction(cipher: str, seal: Seal) -> None:
    path = PathSealer(KEYS, cipher, seal)
    begun = [path.begin(transfer, grant, MESSAGE).introduction for transfer in (1, 1, 2) for grant in (7, 8)]
    assert len(set(begun)) == 6
    assert {len(introduction) for introduction in begun} == {INTRODUCTION_BYTES}
    assert unpack_introduction(begun[0]) == Introduction(1, 1, MESSAGE)


def test_two_sides_take_aes_only_where_both_processors_have_it(cipher: str, seal: Seal, tmp_path: Path) -> None:
    del seal
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu aes avx\n" if cipher == AES else "Features\t: fp asimd\n")
    has = own_ciphers(info)
    assert agreed_cipher(has, own_ciphers(tmp_path / "absent")) == CHACHA
    assert agreed_cipher(has, has) == cipher
    assert agreed_cipher(has, ("rot13",)) is None
