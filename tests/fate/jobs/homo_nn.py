"""A client of FATE Flow: two epochs of homogeneous logistic regression, as a network, over guest, host and arbiter."""

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
    """Upload, train, and fail unless FATE Flow says that all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    # otherwise `pipeline init` would have to write them into the installed package
    FlowConfig.IP, FlowConfig.PORT = "127.0.0.1", arguments.port
    _upload(arguments.data / "samples.csv")
    _train()


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


def _train() -> None:
    pipeline = FateFlowPipeline().set_parties(guest="9999", host="10000", arbiter="10000")
    reader = Reader("reader_0", runtime_parties={"guest": "9999", "host": "10000"})
    reader.guest.task_parameters(namespace="test", name="samples")
    reader.hosts[0].task_parameters(namespace="test", name="samples")
    trainer = HomoNN("nn_0", runner_conf=_runner(), train_data=reader.outputs["output_data"])
    pipeline.add_tasks([reader, trainer])
    pipeline.compile()
    pipeline.fit()


def _runner() -> Any:
    return get_config_of_default_runner(
        algo="fedavg",
        model=Sequential(nn.Linear(FEATURES, 1), nn.Sigmoid()),
        loss=nn.BCELoss(),
        optimizer=optim.SGD(lr=0.1),
        training_args=TrainingArguments(num_train_epochs=2, per_device_train_batch_size=64, seed=1),
        fed_args=FedAVGArguments(),
        task_type="binary",
    )


if __name__ == "__main__":
    main()
