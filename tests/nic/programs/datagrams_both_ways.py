"""Both hosts send numbered datagrams to each other, some each millisecond; each prints what came, and when.

datagrams_both_ways.py MILLISECONDS BYTES [A_MILLISECOND]
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time

PORT = 9998
SILENCE_SECONDS = 2.0
STAMP = struct.Struct("<Id")


def send(peer: str, milliseconds: int, size: int, each: int) -> None:
    began = float(os.environ["TESTBED_BEGAN"]) + 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for number in range(milliseconds * each):
            # the other host is listening by then
            if number % each == 0:
                time.sleep(max(0.0, began + number // each / 1000 - time.monotonic()))
            out.sendto(STAMP.pack(number, time.monotonic()).ljust(size, b"\0"), (peer, PORT))


def receive(incoming: socket.socket) -> list[tuple[int, float, float]]:
    """Number, when it was sent, when it came; seconds after the first could be sent."""
    began, arrived = float(os.environ["TESTBED_BEGAN"]) + 1, []
    incoming.settimeout(SILENCE_SECONDS)
    try:
        while True:
            number, sent_at = STAMP.unpack(incoming.recv(65536)[: STAMP.size])
            arrived.append((number, sent_at - began, time.monotonic() - began))
    except TimeoutError:
        return arrived


def main() -> None:
    me, hosts = int(os.environ["TESTBED_HOST"]), os.environ["TESTBED_HOSTS"].split(",")
    milliseconds, size, each = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as incoming:
        incoming.bind((hosts[me], PORT))
        sending = threading.Thread(target=send, args=(hosts[1 - me], milliseconds, size, each))
        sending.start()
        print(json.dumps(receive(incoming)))
        sending.join()


if __name__ == "__main__":
    main()
