"""What a gateway has to know to have a worker add a message: what its footer says, and where its planes begin."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from fedrdma_fate.aggregate.jobs import Done, JobAnswer
from fedrdma_fate.client.protocol import Place
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MessageKey, MessageKind
from fedrdma_fate.wire.site_sum import SITE_SUM_END_BYTES, SiteSum, decode_site_sum, site_sum_footer_bytes
from fedrdma_fate.wire.summand import END_BYTES, NoSummandError, Summand, decode_footer, footer_bytes

logger = logging.getLogger(__name__)

_MOST_TOLD = 8
"""Parties that a message names, and lines of the log at a time about updates of one site that cannot be added: as many
as `fedrdma status` names."""


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
    except FedRDMAError as error:
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


def note_left_out(context: GatewayContext, message: Message, reason: str) -> None:
    """Tell people of an update that a sum goes on without; a site has so many of them logged at a time, and no more."""
    about, key = message.origin or context.config.site, message.key
    told = "an update of %s/%s in %s is not added, and left to FATE: %s"
    values = key.name, key.tag, key.session, reason
    context.complaints.add(logger, "updates that cannot be added", about, told, *values, lines=_MOST_TOLD)


def timed_out(missing: Sequence[MessageKey], parties: int, timeout: float) -> GatewayError:
    """A sum of so many has not come in time, for these updates are missing."""
    key, names = missing[0], ", ".join(str(each.source) for each in missing[:_MOST_TOLD])
    return GatewayError(
        ErrorCode.PULL_TIMEOUT,
        f"of the sum of {key.name}/{key.tag} in {key.session}, {len(missing)} of {parties} updates did not "
        f"come within {timeout:g} s: {names}.",
        "See in `fedrdma status` whether their peers are connected, and in the other sites' logs whether they were "
        "pushed.",
    )


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
