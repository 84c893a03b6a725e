"""Host 0 sends numbered datagrams; host 1 prints which came, in which order, and how long each took."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

PORT = 9999
PAUSE_SECONDS = 0.0001
SILENCE_SECONDS = 2.0
STAMP = struct.Struct("<Id")


def send(peer: str, count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        # the other host is listening by then
        time.sleep(1)
        for number in range(count):
            out.sendto(STAMP.pack(number, time.monotonic()), (peer, PORT))
            time.sleep(PAUSE_SECONDS)


def receive(address: str) -> dict[str, list[float]]:
    numbers, milliseconds = [], []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as incoming:
        incoming.bind((address, PORT))
        incoming.settimeout(SILENCE_SECONDS)
        try:
            while True:
                number, sent_at = STAMP.unpack(incoming.recv(STAMP.size))
                numbers.append(number)
                milliseconds.append((time.monotonic() - sent_at) * 1000)
        except TimeoutError:
            return {"numbers": numbers, "milliseconds": milliseconds}


def main() -> None:
    hosts = os.environ["TESTBED_HOSTS"].split(",")
    if os.environ["TESTBED_HOST"] == "0":
        send(hosts[1], int(sys.argv[1]))
    else:
        print(json.dumps(receive(os.environ["TESTBED_ADDRESS"])))


if __name__ == "__main__":
    main()
