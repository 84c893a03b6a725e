"""Other bytes of the same xxh3-64, for tests that show what rests on tags alone: the digest keeps nobody out."""

from __future__ import annotations

import struct

_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578")
"""The default secret of XXH3, as far as the first lane of its first five stripes uses it."""

_STRIPE = 64
_LOW = (1 << 32) - 1


def with_same_digest(block: bytes) -> bytes:
    """These bytes with five words of 64 bits changed; more than 1024 of them, as XXH3 takes in at a time.

    Of each word d with its secret s, XXH3 adds d to one lane, and the product of the halves of d ^ s to another. Five
    words are more than is needed to get any two sums.
    """
    places = [number * _STRIPE for number in range(5)]
    words = [struct.unpack_from("<Q", block, place)[0] for place in places]
    secrets = struct.unpack("<5Q", _SECRET)
    keyed = [word ^ secret for word, secret in zip(words, secrets, strict=True)]
    products = sum((each & _LOW) * (each >> 32) for each in keyed) % (1 << 64)
    high = products >> 31
    first, second, third = 1 << 32 | products & _LOW >> 1, 1 << 63 | min(high, _LOW), 1 << 63 | max(0, high - _LOW)
    new = [each ^ secret for each, secret in zip((first, second, third), secrets, strict=False)]
    rest = (sum(words) - sum(new)) % (1 << 64)
    # of the fourth the low half of d ^ s is 0, of the fifth the high one: no product, and one half of each is free
    fifth_low = (rest - secrets[3]) & _LOW
    fifth = secrets[4] & ~_LOW | fifth_low
    fourth = (rest - fifth) % (1 << 64)
    changed = bytearray(block)
    for place, word in zip(places, [*new, fourth, fifth], strict=True):
        struct.pack_into("<Q", changed, place, word)
    return bytes(changed)
