"""Greetings between versions: a gateway of an older version takes no greeting with a field that it does not know.

Newer ones pass such fields over. To an older one they are left out, and with them what they are about: the answer to a
greeting has what that had, and who is refused for a field greets again without it and those that are newer.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from fedrdma_fate.wire.frames import Hello, encode_frame, parse_message

FIRST_LATER_FIELD = "site_sums"
"""Of those that are left out to whom does not know them. Gateways that do not know what stands before it know other
frames, too: those are refused (FR201)."""

LATER_FIELDS: tuple[str, ...] = Hello.__struct_fields__[Hello.__struct_fields__.index(FIRST_LATER_FIELD) :]
"""The oldest first. Each of them may be missing: none is about keys or sealing."""

_UNKNOWN = re.compile("unknown field `([a-z_]{1,64})`")
"""How gateways before this one say that they do not know a field, in the reason of their goodbye."""

_encoder = msgspec.msgpack.Encoder()
_fields_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode_greeting(hello: Hello, known: Collection[str] = LATER_FIELDS) -> bytes:
    """The frame of a greeting, with those of the later fields that the other side knows."""
    left_out = set(LATER_FIELDS).difference(known)
    if not left_out:
        return encode_frame(hello)
    fields = msgspec.to_builtins(hello, builtin_types=(bytes,))
    return _encoder.encode({name: value for name, value in fields.items() if name not in left_out})


def later_fields_of(raw: bytes) -> frozenset[str]:
    """Which of the later fields a greeting has, given its frame.

    Raises:
        WireError: MALFORMED_FRAME when it has a field whose name is no text, which nobody has looked at before.
    """
    fields = parse_message(_fields_decoder, raw, "greeting")
    return frozenset(LATER_FIELDS).intersection(fields)


def known_by_refusal(reason: str) -> tuple[str, ...] | None:
    """Which of the later fields somebody knows who has refused a greeting; None where it was not for one of them.

    Args:
        reason: of its goodbye: nothing but the name of a field of ours is taken from it.
    """
    found = _UNKNOWN.search(reason)
    if found is None or found.group(1) not in LATER_FIELDS:
        return None
    return LATER_FIELDS[: LATER_FIELDS.index(found.group(1))]
