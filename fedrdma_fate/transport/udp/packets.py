"""UDP datagrams of a data path: probes that find it, pieces of chunks and of messages, and signs of life.

All integers are little-endian. Every datagram begins with its kind and VERSION. But for probes, whose receiver does not
know them yet, all name the connection next: 64 random bits that both sides heard on the control channel, so that nobody
who does not see the path can make one. The last piece may be shorter than the others.

| kind | bytes | what follows |
|---|---|---|
| PROBE | 38 | token of the draft, length, longest that came from the peer, our cookie, the peer's; then zeros |
| CHUNK | 32 | piece of a chunk: which, of how many, their bytes; key, immediate, place in the slot; then its bytes |
| MESSAGE | 20 | piece of a message: which, of how many, their bytes; its number; then its bytes |
| PING | 30 | number, tag (`path_validation.py`) |
| PONG | 16 | number of the ping, longest datagram that came since the ping before it |
| NACK | 10 | of each chunk that came in part: key, immediate, pieces, their bytes, a bit for each missing one |
| PADDING | 10 | zeros: says by its length alone what the path carries; a ping behind it asks whether it came |
| PATH_CHALLENGE | 26 | 16 random bytes: is it you who is at this address? |
| PATH_RESPONSE | 26 | tag of the challenge |
"""

from __future__ import annotations

import struct

VERSION = 2

PROBE, CHUNK, MESSAGE, PING, PONG, NACK, PADDING, PATH_CHALLENGE, PATH_RESPONSE = range(1, 10)
"""Kinds of datagrams."""

COOKIE_BYTES = 8
"""Random, of a probe: who sends it back is where it was sent to."""

PATH_TAG_BYTES = 16
"""Of a ping, or an answer to a challenge: one forged in 2¹²⁸ gets through."""

CHALLENGE_BYTES = 16
"""Random: a challenge is as long as its answer, and shorter than the ping that it answers."""

PROBE_HEAD = struct.Struct("<BB16sHH8s8s")
"""Kind, version, token, length, longest that came, our cookie, the peer's."""

CHUNK_HEAD = struct.Struct("<BBQHHHIIQ")
"""Kind, version, connection, piece, pieces, bytes of a piece, key, immediate, offset in the slot."""

MESSAGE_HEAD = struct.Struct("<BBQHHHI")
"""Kind, version, connection, piece, pieces, bytes of a piece, number."""

PING_HEAD = struct.Struct("<BBQI16s")
"""Kind, version, connection, number, tag."""

PATH_HEAD = struct.Struct("<BBQ16s")
"""Kind, version, connection, challenge or tag."""

PONG_HEAD = struct.Struct("<BBQIH")
"""Kind, version, connection, number, longest."""

CONNECTION_HEAD = struct.Struct("<BBQ")
"""Kind, version, connection: what every datagram but a probe begins with, and all that NACK and PADDING have."""

NACK_CHUNK_HEAD = struct.Struct("<IIHH")
"""Key, immediate, pieces, bytes of a piece; behind it the bitmap of those that are missing, little-endian, in whole
bytes."""

LEAST_BYTES = {
    PROBE: PROBE_HEAD.size,
    CHUNK: CHUNK_HEAD.size + 1,
    MESSAGE: MESSAGE_HEAD.size,
    PING: PING_HEAD.size,
    PONG: PONG_HEAD.size,
    NACK: CONNECTION_HEAD.size,
    PADDING: CONNECTION_HEAD.size,
    PATH_CHALLENGE: PATH_HEAD.size,
    PATH_RESPONSE: PATH_HEAD.size,
}
"""Of each kind; a shorter datagram is none of ours."""

MOST_PIECES = 0xFFFF
"""Of a chunk or message: they are counted by 16 bits."""

KEY_MASK = 0xFFFFFFFF
"""A slot's key has 63 bits; the lower ones tell a connection's slots apart, and the connection itself is the secret."""
