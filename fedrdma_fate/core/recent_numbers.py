"""Numbers that have been used lately, such as those of transfers, in little memory where many are near each other."""

from __future__ import annotations

from collections.abc import Iterator

PAGE_NUMBERS = 256
"""Numbers that one page has a bit for: a page takes some 160 bytes, so one number of a counter less than a byte."""


class RecentNumbers:
    """A set from which the oldest go: it has the last `most` that were added, and up to a page more.

    Numbers lie in pages, in the order in which the first of each was added. The oldest page goes as a whole, as soon as
    `most` are left without it.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: numbers that are surely remembered.
        """
        self._most = most
        # which numbers of a page are in, a bit each
        self._pages: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        page, bit = divmod(number, PAGE_NUMBERS)
        return bool(self._pages.get(page, 0) >> bit & 1)

    def __iter__(self) -> Iterator[int]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[tuple[int, ...]]:
        """All of them, the oldest page first, ascending within each; at most `PAGE_NUMBERS` at once."""
        for page, bits in self._pages.items():
            first = page * PAGE_NUMBERS
            yield tuple(first + bit for bit in range(bits.bit_length()) if bits >> bit & 1)

    def add(self, number: int) -> None:
        """One more; nothing happens where it is in. Numbers are 0 or more."""
        if number in self:
            return
        page, bit = divmod(number, PAGE_NUMBERS)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit
        self._count += 1
        while self._pages:
            oldest = next(iter(self._pages))
            left = self._count - self._pages[oldest].bit_count()
            if left < self._most:
                break
            del self._pages[oldest]
            self._count = left

    def discard(self, number: int) -> None:
        """It is not in any more; nothing happens where it was not."""
        if number not in self:
            return
        page, bit = divmod(number, PAGE_NUMBERS)
        self._count -= 1
        left = self._pages[page] & ~(1 << bit)
        if left:
            self._pages[page] = left
        else:
            del self._pages[page]
