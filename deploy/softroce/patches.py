"""What is changed in Soft-RoCE's source before a kernel is built from it."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.softroce.errors import TestbedError

RXE = Path("drivers/infiniband/sw/rxe")
NIC_WINDOW_PACKETS = 131_072
STOCK_WINDOW_PACKETS = 128

_NEW_UC_MESSAGE = re.compile(
    r"(?P<head>case IB_QPT_UC:\s+if \(qp->resp\.drop_msg \|\| diff != 0\) \{\s+"
    r"if \(pkt->mask & RXE_START_MASK\) \{\s+qp->resp\.drop_msg = 0;\n)"
)
_FORGET_LOST_MESSAGE = """\
				/* fedrdma testbed: the message before this one ends here, incomplete */
				qp->resp.opcode = -1;
				if (qp->resp.mr) {
					rxe_put(qp->resp.mr);
					qp->resp.mr = NULL;
				}
"""
_WINDOW = re.compile(r"(?P<head>\bRXE_MAX_UNACKED_PSNS\s*=\s*)(?P<packets>\d+)")


def let_unreliable_connections_recover(source: Path) -> None:
    """After a lost packet, an unreliable-connected queue pair takes the next message again, as on a network card.

    Soft-RoCE's responder goes on expecting the middle of the message that was lost, and drops all that follow.

    Raises:
        TestbedError: the source is not as expected.
    """
    path = source / RXE / "rxe_resp.c"
    text = path.read_text()
    if _FORGET_LOST_MESSAGE in text:
        return
    changed, count = _NEW_UC_MESSAGE.subn(lambda match: match["head"] + _FORGET_LOST_MESSAGE, text)
    _write_if_once(path, changed, count)


def set_window(source: Path, packets: int) -> None:
    """How many packets a reliable-connected queue pair may have on the way without an acknowledgement.

    Raises:
        TestbedError: the source is not as expected.
    """
    path = source / RXE / "rxe_param.h"
    text = path.read_text()
    changed, count = _WINDOW.subn(lambda match: f"{match['head']}{packets}", text)
    if changed != text or count != 1:
        _write_if_once(path, changed, count)


def _write_if_once(path: Path, text: str, count: int) -> None:
    if count != 1:
        raise TestbedError(
            f"{path} is not as expected: the place to change was found {count} times.",
            "Build from linux-source-7.3, or adapt deploy/softroce/patches.py to this source.",
        )
    path.write_text(text)
