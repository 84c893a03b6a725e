"""A client of FATE Flow: SecureBoost, or coordinated logistic regression, on rows whose columns lie at two sites.

With `--upload FILE` it uploads one party's rows; without, it trains on what both have, and prints as JSON what came of
it: each row's score at the guest, and the model.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from fate_client.pipeline import FateFlowPipeline
from fate_client.pipeline.components.fate import PSI, CoordinatedLR, HeteroSecureBoost, Reader
from fate_client.pipeline.conf.env_config import FlowConfig

NAMESPACE = "hetero"


def main() -> None:
    """Upload or train, and fail unless FATE Flow says that all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upload", type=Path)
    parser.add_argument("--role", choices=("guest", "host"), default="guest", help="whose rows are uploaded")
    parser.add_argument("--algorithm", choices=("secureboost", "lr"))
    arguments = parser.parse_args()
    # otherwise `pipeline init` would have to write them into the installed package
    FlowConfig.IP, FlowConfig.PORT = "127.0.0.1", arguments.port
    # FATE's client writes to it what becomes of the job
    with contextlib.redirect_stdout(sys.stderr):
        if arguments.upload is not None:
            _upload(arguments.upload, arguments.role)
            return
        found = _train(arguments.algorithm)
    print(json.dumps(found))


def _upload(path: Path, role: str) -> None:
    label = {"label_type": "int32", "label_name": "y"} if role == "guest" else {}
    meta = {"delimiter": ",", "dtype": "float32", "match_id_name": "id", **label}
    FateFlowPipeline().transform_local_file_to_dataframe(
        file=str(path), head=True, extend_sid=True, meta=meta, namespace=NAMESPACE, name=role
    )


def _train(algorithm: str) -> dict[str, Any]:
    parties = {"guest": "9999", "host": "10000"}
    arbiter = {"arbiter": "10000"} if algorithm == "lr" else {}
    pipeline = FateFlowPipeline().set_parties(**parties, **arbiter)
    reader = Reader("reader_0", runtime_parties=parties)
    reader.guest.task_parameters(namespace=NAMESPACE, name="guest")
    reader.hosts[0].task_parameters(namespace=NAMESPACE, name="host")
    psi = PSI("psi_0", runtime_parties=parties, input_data=reader.outputs["output_data"])
    trainer = _trainer(algorithm, psi.outputs["output_data"])
    pipeline.add_tasks([reader, psi, trainer])
    pipeline.compile()
    pipeline.fit()
    info = pipeline.get_task_info("trainer_0")
    rows = info.get_output_data()["train_output_data"]
    scores = dict(zip(rows["id"].astype(str), map(float, rows["predict_score"]), strict=True))
    return {"job": str(pipeline.model_info.job_id), "scores": scores, "model": info.get_output_model()}


def _trainer(algorithm: str, data: Any) -> Any:
    if algorithm == "secureboost":
        return HeteroSecureBoost(
            "trainer_0", train_data=data, num_trees=3, max_depth=3, he_param={"kind": "paillier", "key_length": 1024}
        )
    return CoordinatedLR(
        "trainer_0",
        train_data=data,
        epochs=5,
        batch_size=None,
        optimizer={"method": "SGD", "optimizer_params": {"lr": 0.21}, "penalty": "l2", "alpha": 0.001},
        init_param={"fit_intercept": True, "method": "zeros"},
    )


if __name__ == "__main__":
    main()
