"""Transfers that a peer has announced and that have not ended, by their number and by their message."""

from __future__ import annotations

from collections.abc import Iterator

from fedrdma_fate.wire.frames import MessageKey, Offer


class AnnouncedTransfers:
    """Whoever adds to it keeps to a bound. A peer may ask for each as often as it likes, so nothing is searched."""

    def __init__(self) -> None:
        self._offers: dict[int, Offer] = {}
        self._of_message: dict[MessageKey, set[int]] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._offers)

    def offers(self) -> list[Offer]:
        """All of them."""
        return list(self._offers.values())

    def add(self, offer: Offer) -> None:
        """One was announced, perhaps again."""
        self.discard(offer.transfer)
        self._offers[offer.transfer] = offer
        self._of_message.setdefault(offer.key, set()).add(offer.transfer)

    def discard(self, transfer: int) -> None:
        """One has ended, if it was announced."""
        offer = self._offers.pop(transfer, None)
        if offer is not None:
            transfers = self._of_message[offer.key]
            transfers.remove(transfer)
            if not transfers:
                del self._of_message[offer.key]

    def discard_message(self, key: MessageKey) -> None:
        """A message will not come: no transfer of it is announced any more."""
        for transfer in self._of_message.pop(key, ()):
            del self._offers[transfer]
