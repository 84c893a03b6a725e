"""UDP datagrams of a data path: probes that find it, pieces of chunks and of messages, and signs of life.

All integers are little-endian. Every datagram begins with its kind and VERSION. But for probes, whose receiver does not
know them yet, all name the connection: 64 random bits that both sides heard on the control channel, so that nobody who
does not see the path can make one.

| kind | bytes | what follows |
|---|---|---|
| PROBE | 22 | token of the draft, length, longest that came from the peer; then zeros up to that length |
| CHUNK | 30 | piece of a chunk: which, of how many; key, immediate, connection, place in the slot; then its bytes |
| MESSAGE | 18 | piece of a message: which, of how many; its number, connection; then its bytes |
| PING, PONG | 14 | connection, number; then zeros: pings are as long as chunks' pieces, answers are short |
| NACK | 10 | connection; then of each chunk that came in part: key, immediate, pieces, a bit for each missing one |
"""

from __future__ import annotations

import struct

VERSION = 1

PROBE, CHUNK, MESSAGE, PING, PONG, NACK = 1, 2, 3, 4, 5, 6
"""Kinds of datagrams."""

PROBE_HEAD = struct.Struct("<BB16sHH")
"""Kind, version, token, length, longest that came."""

CHUNK_HEAD = struct.Struct("<BBHHIIQQ")
"""Kind, version, piece, pieces, key, immediate, connection, offset in the slot."""

MESSAGE_HEAD = struct.Struct("<BBHHIQ")
"""Kind, version, piece, pieces, number, connection."""

LIFE_HEAD = struct.Struct("<BBQI")
"""Kind, version, connection, number."""

NACK_HEAD = struct.Struct("<BBQ")
"""Kind, version, connection."""

NACK_CHUNK_HEAD = struct.Struct("<IIH")
"""Key, immediate, pieces; behind it the bitmap of those that are missing, little-endian, in whole bytes."""

LEAST_BYTES = {
    PROBE: PROBE_HEAD.size,
    CHUNK: CHUNK_HEAD.size + 1,
    MESSAGE: MESSAGE_HEAD.size,
    PING: LIFE_HEAD.size,
    PONG: LIFE_HEAD.size,
    NACK: NACK_HEAD.size,
}
"""Of each kind; a shorter datagram is none of ours."""

MOST_PIECES = 0xFFFF
"""Of a chunk or message: they are counted by 16 bits."""

KEY_MASK = 0xFFFFFFFF
"""A slot's key has 63 bits; the lower ones tell a connection's slots apart, and the connection itself is the secret."""
