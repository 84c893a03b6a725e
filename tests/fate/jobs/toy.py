"""A client of FATE Flow: FATE's toy example, which needs no data, at a guest and a host."""

import argparse
import sys
import time
from typing import Any

from fate_client.flow_sdk import FlowClient

ROWS, PARTITIONS = 300, 3
JOB = {
    "schema_version": "2.2.0",
    "dag": {
        "parties": [{"role": "guest", "party_id": ["9999"]}, {"role": "host", "party_id": ["10000"]}],
        "stage": "default",
        "tasks": {
            "toy_0": {
                "component_ref": "toy_example",
                "parameters": {"data_num": ROWS, "partition": PARTITIONS},
                "parties": [{"role": "guest", "party_id": ["9999"]}, {"role": "host", "party_id": ["10000"]}],
            }
        },
    },
}


def main() -> None:
    """Submit it, and fail unless FATE Flow says that all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    client = FlowClient("127.0.0.1", parser.parse_args().port, "v2")
    answer = client.job.submit(JOB)
    if answer.get("code"):
        sys.exit(f"not taken: {answer}")
    status = ""
    while status in ("", "waiting", "ready", "running"):
        time.sleep(1)
        status = _status(client, answer["job_id"])
    if status != "success":
        sys.exit(f"the job ended as {status}: {client.task.query(job_id=answer['job_id'])}")


def _status(client: Any, job_id: str) -> str:
    found = client.job.query(job_id=job_id, role="guest", party_id="9999")
    return str(found["data"][0]["status"])


if __name__ == "__main__":
    main()
