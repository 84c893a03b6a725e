"""Every host greets every other by TCP. Prints which hosts greeted this one, once all have."""

from __future__ import annotations

import json
import os
import socket
import time

PORT = 7000
PATIENCE_SECONDS = 60.0


def greet(address: str, text: str) -> None:
    """Send a text to the host at an address, which may not listen yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with socket.create_connection((address, PORT), timeout=PATIENCE_SECONDS) as connection:
                connection.sendall(text.encode())
                return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def heard(server: socket.socket) -> str:
    """Where somebody greets from, by the address of the packets, and the text."""
    connection, (address, _) = server.accept()
    with connection:
        return f"{address}: {connection.makefile().read()}"


def main() -> None:
    own, host = os.environ["TESTBED_ADDRESS"], os.environ["TESTBED_HOST"]
    others = [address for address in os.environ["TESTBED_HOSTS"].split(",") if address != own]
    with socket.create_server((own, PORT), backlog=len(others)) as server:
        server.settimeout(PATIENCE_SECONDS)
        for address in others:
            greet(address, f"host {host}")
        print(json.dumps(sorted(heard(server) for _ in others)))


if __name__ == "__main__":
    main()
