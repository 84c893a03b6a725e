"""A client of FATE Flow: a network trained homogeneously for two epochs, over guest, host and arbiter.

It is logistic regression, or has two hidden layers, so that its updates are as long as a test wants them.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fate_client.pipeline import FateFlowPipeline
from fate_client.pipeline.components.fate import Reader
from fate_client.pipeline.components.fate.homo_nn import HomoNN, get_config_of_default_runner
from fate_client.pipeline.components.fate.nn.algo_params import FedAVGArguments, TrainingArguments
from fate_client.pipeline.components.fate.nn.torch import nn, optim
from fate_client.pipeline.components.fate.nn.torch.base import Sequential
from fate_client.pipeline.conf.env_config import FlowConfig

ROWS, FEATURES = 120, 8


def main() -> None:
    """Upload and train, or only one of them, and fail unless FATE Flow says that all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, help="where samples are written to be uploaded; without, they are there")
    parser.add_argument("--upload-only", action="store_true")
    parser.add_argument("--hidden", type=int, default=0, help="width of the hidden layers; its square is the update")
    arguments = parser.parse_args()
    # otherwise `pipeline init` would have to write them into the installed package
    FlowConfig.IP, FlowConfig.PORT = "127.0.0.1", arguments.port
    if arguments.data is not None:
        _upload(arguments.data / "samples.csv")
    if not arguments.upload_only:
        _train(arguments.hidden)


def _upload(path: Path) -> None:
    """One table, that both clients of this one server train on."""
    random = np.random.default_rng(1)
    features = random.normal(size=(ROWS, FEATURES))
    table = pd.DataFrame(features, columns=[f"x{number}" for number in range(FEATURES)])
    table.insert(0, "y", (features.sum(axis=1) > 0).astype(int))
    table.insert(0, "id", range(ROWS))
    table.to_csv(path, index=False)
    meta = {
        "delimiter": ",",
        "dtype": "float32",
        "label_type": "int32",
        "label_name": "y",
        "match_id_name": "id",
    }
    FateFlowPipeline().transform_local_file_to_dataframe(
        file=str(path), head=True, extend_sid=True, meta=meta, namespace="test", name="samples"
    )


def _train(hidden: int) -> None:
    pipeline = FateFlowPipeline().set_parties(guest="9999", host="10000", arbiter="10000")
    reader = Reader("reader_0", runtime_parties={"guest": "9999", "host": "10000"})
    reader.guest.task_parameters(namespace="test", name="samples")
    reader.hosts[0].task_parameters(namespace="test", name="samples")
    trainer = HomoNN("nn_0", runner_conf=_runner(hidden), train_data=reader.outputs["output_data"])
    pipeline.add_tasks([reader, trainer])
    pipeline.compile()
    pipeline.fit()


def _runner(hidden: int) -> Any:
    first = [nn.Linear(FEATURES, hidden), nn.Linear(hidden, hidden)] if hidden else []
    return get_config_of_default_runner(
        algo="fedavg",
        model=Sequential(*first, nn.Linear(hidden or FEATURES, 1), nn.Sigmoid()),
        loss=nn.BCELoss(),
        optimizer=optim.SGD(lr=0.1),
        training_args=TrainingArguments(num_train_epochs=2, per_device_train_batch_size=64, seed=1),
        fed_args=FedAVGArguments(),
        task_type="binary",
    )


if __name__ == "__main__":
    main()
