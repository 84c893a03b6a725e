"""Logs: one line a record in either format, fields kept, and nothing that a peer says can fake a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fedrdma_fate.obs.log import ROOT_LOGGER, configure
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, TransportError


@pytest.fixture(autouse=True)
def _restore_logger() -> Iterator[None]:
    logger = logging.getLogger(ROOT_LOGGER)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def _logger() -> logging.Logger:
    return logging.getLogger(f"{ROOT_LOGGER}.somewhere")


def test_json_lines_carry_message_level_logger_and_fields(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    _logger().info("link to %s is up", "host", extra={"transport": "tcp", "streams": 2})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "fedrdma_fate.somewhere",
        "message": "link to host is up",
        "transport": "tcp",
        "streams": 2,
    }


def test_human_lines_end_in_key_value_pairs(stream: io.StringIO) -> None:
    configure("info", "human", stream)
    _logger().warning("slow link", extra={"peer": "host", "reason": "no RDMA device", "empty": ""})
    assert stream.getvalue().endswith(
        ' WARNING fedrdma_fate.somewhere: slow link peer=host reason="no RDMA device" empty=""\n'
    )


@pytest.mark.parametrize("style", ["human", "json"])
def test_control_characters_cannot_start_a_new_line(stream: io.StringIO, style: str) -> None:
    configure("info", style, stream)  # type: ignore[arg-type]
    _logger().info("peer says %s", "bye\n2026-01-01 ERROR forged\x9b2J", extra={"name_": "a\nb\x9b"})
    assert stream.getvalue().count("\n") == 1
    if style == "human":
        assert "\x9b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["human", "json"])
def test_an_error_is_logged_with_its_code(stream: io.StringIO, style: str) -> None:
    configure("info", style, stream)  # type: ignore[arg-type]
    try:
        raise TransportError(ErrorCode.LINK_LOST, "the link is gone")
    except TransportError:
        _logger().exception("transfer failed")
    assert "FR504" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


def test_records_below_the_level_are_left_out(stream: io.StringIO) -> None:
    configure("warning", "human", stream)
    _logger().info("not shown")
    assert stream.getvalue() == ""


def test_configuring_again_replaces_the_earlier_output(stream: io.StringIO) -> None:
    configure("info", "human", stream)
    later = io.StringIO()
    configure("debug", "json", later)
    _logger().debug("once")
    assert stream.getvalue() == ""
    assert len(later.getvalue().splitlines()) == 1


def test_handlers_of_others_are_left_in_place(stream: io.StringIO) -> None:
    theirs = logging.NullHandler()
    logging.getLogger(ROOT_LOGGER).addHandler(theirs)
    configure("info", "human", stream)
    configure("info", "human", stream)
    assert theirs in logging.getLogger(ROOT_LOGGER).handlers


@pytest.mark.parametrize(("level", "style"), [("loud", "human"), ("info", "xml")])
def test_an_unknown_level_or_format_is_a_configuration_error(stream: io.StringIO, level: str, style: str) -> None:
    with pytest.raises(ConfigError, match="unknown") as caught:
        configure(level, style, stream)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "one of" in caught.value.remedy
