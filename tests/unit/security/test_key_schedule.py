"""Both sides of a control channel get the same keys, and nobody who changed a word of theirs."""

from __future__ import annotations

import itertools

import pytest

from fedrdma_fate.security.key_schedule import (
    Greeter,
    KeyExchange,
    KeyExchangeError,
    PathKeys,
    SessionKeys,
    attempt_key,
    new_path_nonce,
)

ALPHA, BETA = KeyExchange(), KeyExchange()
GREETING_A = Greeter("bank-a", "run-1", ALPHA.public, b"certificate a", "on", ("aes-256-gcm",))
GREETING_B = Greeter("bank-b", "run-2", BETA.public, b"certificate b", "on", ("aes-256-gcm",))
NONCE_A, NONCE_B = new_path_nonce(), new_path_nonce()


def path_of_a(own: Greeter = GREETING_A, peer: Greeter = GREETING_B, exchange: KeyExchange = ALPHA) -> PathKeys:
    return SessionKeys.of_greetings(exchange, own, peer).path("tcp", NONCE_A, NONCE_B)


def path_of_b(own: Greeter = GREETING_B, peer: Greeter = GREETING_A) -> PathKeys:
    return SessionKeys.of_greetings(BETA, own, peer).path("tcp", NONCE_B, NONCE_A)


def test_both_sides_get_the_same_keys_the_other_way_round() -> None:
    assert path_of_a() == path_of_b().reversed
    assert path_of_a().datagrams == path_of_b().datagrams.reversed


def test_no_two_purposes_or_directions_have_the_same_key() -> None:
    keys = path_of_a()
    every = [*keys.send, *keys.receive]
    every += [attempt_key(keys.send.chunks, transfer, attempt) for transfer in (1, 2) for attempt in (1, 2)]
    assert all(len(key) == 32 for key in every)
    assert len(set(every)) == len(every) == 10


@pytest.mark.parametrize(
    "changed",
    [
        {"site": "bank-c"},
        {"incarnation": "run-3"},
        {"certificate": b"another certificate"},
        {"seal": "integrity"},
        {"ciphers": ("chacha20-poly1305",)},
        {"ciphers": ("aes-256-gcm", "")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_who_reads_another_word_in_a_greeting_gets_other_keys(changed: dict[str, object]) -> None:
    other = path_of_a(peer=GREETING_B._replace(**changed))
    own = path_of_b()
    assert not {*other.send, *other.receive} & {*own.send, *own.receive}


def test_whoever_knows_all_that_was_said_but_no_private_half_has_no_key() -> None:
    stranger = KeyExchange()
    others = path_of_a(exchange=stranger)
    assert not {*others.send, *others.receive} & {*path_of_b().send, *path_of_b().receive}


def test_every_connection_of_a_data_path_has_keys_of_its_own() -> None:
    session = SessionKeys.of_greetings(ALPHA, GREETING_A, GREETING_B)
    other = new_path_nonce()
    paths = [
        session.path("tcp", NONCE_A, NONCE_B),
        session.path("tcp", other, NONCE_B),
        session.path("tcp", NONCE_A, other),
        session.path("grpc", NONCE_A, NONCE_B),
    ]
    for one, another in itertools.combinations(paths, 2):
        assert not {*one.send, *one.receive} & {*another.send, *another.receive}


def test_two_words_are_not_mistaken_for_one_that_reads_the_same() -> None:
    joined = path_of_a(own=GREETING_A._replace(site="bank-arun", incarnation="-1"))
    split = path_of_a(own=GREETING_A._replace(site="bank-a", incarnation="run-1"))
    assert joined.send.chunks != split.send.chunks


@pytest.mark.parametrize("half", [b"", bytes(31), bytes(33), bytes(32), b"\x01" + bytes(31)])
def test_a_half_that_is_none_or_gives_a_secret_that_anybody_knows_is_refused(half: bytes) -> None:
    with pytest.raises(KeyExchangeError):
        SessionKeys.of_greetings(ALPHA, GREETING_A, GREETING_B._replace(exchange_key=half))


def test_a_greeting_sent_back_to_its_sender_gives_no_keys_that_it_would_take_for_the_peers() -> None:
    mirrored = SessionKeys.of_greetings(ALPHA, GREETING_A, GREETING_A._replace(site="bank-b"))
    keys = mirrored.path("tcp", NONCE_A, NONCE_B)
    assert keys.send != keys.receive


def test_nothing_secret_is_shown_where_keys_are_printed() -> None:
    session = SessionKeys.of_greetings(ALPHA, GREETING_A, GREETING_B)
    shown = repr(session) + repr(ALPHA)
    assert session._send.hex() not in shown
    assert repr(session._send) not in shown
