"""What a gateway has to know to have a worker add a message: what its footer says, and where its planes begin."""

from __future__ import annotations

import os
import time

from fedrdma_fate.aggregate.jobs import Done, JobAnswer
from fedrdma_fate.client.protocol import Place
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.errors import MemoryPoolError
from fedrdma_fate.wire.frames import MessageKind
from fedrdma_fate.wire.site_sum import SITE_SUM_END_BYTES, SiteSum, decode_site_sum, site_sum_footer_bytes
from fedrdma_fate.wire.summand import END_BYTES, NoSummandError, Summand, decode_footer, footer_bytes


class CannotAddError(Exception):
    """An update cannot be added here, and why.

    Attributes:
        expected: that is as it should be.
    """

    def __init__(self, reason: str, *, expected: bool = False) -> None:
        super().__init__(reason)
        self.expected = expected


class UnfitUpdateError(CannotAddError):
    """It is this update that cannot be added, whatever the others are."""


def locate(message: Message) -> tuple[Place, int, int]:
    """As `Message.locate`, for adding.

    Raises:
        CannotAddError: there is no descriptor to be had.
    """
    try:
        return message.locate()
    except MemoryPoolError as error:
        raise CannotAddError(str(error)) from error


def note_added(
    context: GatewayContext, order: str, planes: int, message: Message, answer: JobAnswer, started: float
) -> None:
    """Count an addition.

    Args:
        context: the gateway's.
        order: of the sum.
        planes: bytes that were added.
        message: they were in.
        answer: the worker's.
        started: when it was about to be told, by time.monotonic.
    """
    context.metrics.update_added(order, planes, time.monotonic() - started)
    if isinstance(answer, Done) and answer.began:
        context.metrics.update_waited(order, max(0.0, answer.began - message.arrived))


def read_summand(message: Message, descriptor: int, offset: int) -> tuple[Summand, int]:
    """What its footer says, and where in the payload the first plane begins.

    Raises:
        UnfitUpdateError: it is no summand.
    """
    return summand_at(descriptor, offset, message.total_bytes, message.kind)


def summand_at(descriptor: int, offset: int, total: int, kind: MessageKind) -> tuple[Summand, int]:
    """The same of a payload of so many bytes, of which the end alone has to lie there.

    Raises:
        UnfitUpdateError: it is no summand.
    """
    try:
        if total < END_BYTES or kind != "object":
            raise NoSummandError("it has no footer")
        length = footer_bytes(os.pread(descriptor, END_BYTES, offset + total - END_BYTES))
        if length > total:
            raise NoSummandError("its footer is longer than itself")
        return decode_footer(os.pread(descriptor, length, offset + total - length), total)
    except (NoSummandError, OSError) as error:
        raise UnfitUpdateError(f"it is no summand: {error}") from error


def read_site_sum(message: Message, descriptor: int, offset: int) -> tuple[SiteSum, int]:
    """The same of the sum of a site.

    Raises:
        CannotAddError: it is none.
    """
    if message.missing:
        raise CannotAddError("it is no sum of a site: some of it is missing")
    return site_sum_at(descriptor, offset, message.total_bytes)


def site_sum_at(descriptor: int, offset: int, total: int) -> tuple[SiteSum, int]:
    """As `summand_at`, of the sum of a site.

    Raises:
        CannotAddError: it is none.
    """
    try:
        if total < SITE_SUM_END_BYTES:
            raise NoSummandError("it has no footer")
        end = os.pread(descriptor, SITE_SUM_END_BYTES, offset + total - SITE_SUM_END_BYTES)
        length = site_sum_footer_bytes(end)
        if length > total:
            raise NoSummandError("its footer is longer than itself")
        return decode_site_sum(os.pread(descriptor, length, offset + total - length), total)
    except (NoSummandError, OSError) as error:
        raise CannotAddError(f"it is no sum of a site: {error}") from error
