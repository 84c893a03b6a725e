"""Measures round trips of UDP from host 0 to host 1 of the testbed; host 0 prints a JSON line.

    round_trips.py COUNT

A datagram without an answer counts as lost.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

UDP_PORT = 7472
ANSWER_SECONDS = 0.2
END = b"end"


def answer(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((address, UDP_PORT))
        datagrams.settimeout(60)
        while True:
            data, sender = datagrams.recvfrom(64)
            if data == END:
                return
            datagrams.sendto(data, sender)


def ask(address: str, count: int) -> None:
    round_trips: list[float | None] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((address, UDP_PORT))
        datagrams.settimeout(ANSWER_SECONDS)
        # the first ones may go out before host 1 listens
        wait_for_answer(datagrams)
        for number in range(count):
            started = time.monotonic()
            datagrams.send(number.to_bytes(4, "big"))
            try:
                while int.from_bytes(datagrams.recv(64), "big") != number:
                    pass
                round_trips.append(time.monotonic() - started)
            except TimeoutError:
                round_trips.append(None)
        for _ in range(20):
            datagrams.send(END)
    print(json.dumps({"milliseconds": [trip and round(trip * 1e3, 6) for trip in round_trips]}))


def wait_for_answer(datagrams: socket.socket) -> None:
    while True:
        try:
            datagrams.send((2**32 - 1).to_bytes(4, "big"))
            datagrams.recv(64)
            return
        except (TimeoutError, ConnectionRefusedError):
            time.sleep(0.01)


if __name__ == "__main__":
    addresses = os.environ["TESTBED_HOSTS"].split(",")
    if os.environ["TESTBED_HOST"] == "0":
        ask(addresses[1], int(sys.argv[1]))
    else:
        answer(addresses[1])
