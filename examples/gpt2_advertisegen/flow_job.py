"""The job as FATE Flow runs it: what is bound at each site, and what is submitted at one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from examples.gpt2_advertisegen.data import read_rows
from examples.gpt2_advertisegen.options import JobOptions
from examples.gpt2_advertisegen.plan import GUEST, HOST, ModelFacts, RunFiles, training_plan
from examples.gpt2_advertisegen.runner_settings import lora_settings, runner_settings
from fedrdma_fate.wire.frames import Party

TASK = "nn_0"
"""The name of the task that trains."""

_NAMESPACE = "gpt2-advertisegen"
_SITE_MODULE = "gpt2_of_advertisegen"
"""In `at_sites`: found at each site by PYTHONPATH."""


@dataclasses.dataclass(frozen=True, slots=True)
class FlowAddress:
    """Where a FATE Flow takes its clients' calls."""

    host: str
    port: int


@dataclasses.dataclass(frozen=True, slots=True)
class PartyIds:
    """Whose job it is."""

    guest: str
    host: str
    arbiter: str


def bind(flow: FlowAddress, directory: Path, client: Party, own: Path | None = None) -> None:
    """Tell a site's FATE Flow where its rows lie; nothing is copied.

    Args:
        flow: of the site.
        directory: prepared, and there for FATE Flow under the same path.
        client: whose rows.
        own: a file of the site's, in place of the prepared share.

    Raises:
        ConfigError: that file has no rows in AdvertiseGen's format.
    """
    path = RunFiles(directory).silo(client).train if own is None else own
    read_rows(path)
    _pipeline(flow).bind_local_path(path=str(path), namespace=_NAMESPACE, name=_table(client))


def fit(flow: FlowAddress, options: JobOptions, model: ModelFacts, ids: PartyIds) -> str:
    """Submit the job at a FATE Flow and follow it; its id.

    Args:
        flow: of the guest.
        options: what to train.
        model: prepared; every client finds it under the same path.
        ids: of the parties.

    Raises:
        ValueError: the client of FATE Flow's: the job was not taken, or did not end well.
    """
    from fate_client.pipeline.components.fate import HomoNN, Reader

    parties = {"guest": ids.guest, "host": ids.host}
    pipeline = _pipeline(flow).set_parties(**parties, arbiter=ids.arbiter)
    reader = Reader("reader_0", runtime_parties=parties)
    reader.guest.task_parameters(namespace=_NAMESPACE, name=_table(GUEST))
    reader.hosts[0].task_parameters(namespace=_NAMESPACE, name=_table(HOST))
    trainer = HomoNN(
        TASK,
        train_data=reader.outputs["output_data"],
        runner_module="homo_seq2seq_runner",
        runner_class="Seq2SeqRunner",
        runner_conf=flow_runner_settings(options, model),
    )
    pipeline.add_tasks([reader, trainer])
    pipeline.compile()
    # the client writes to it what becomes of the job
    with contextlib.redirect_stdout(sys.stderr):
        pipeline.fit()
    return str(pipeline.model_info.job_id)


def flow_runner_settings(options: JobOptions, model: ModelFacts) -> dict[str, Any]:
    """The runner's configuration as the job carries it, without evaluation: no data is bound for it."""
    training = training_plan(options, options.hyper_parameters())
    if training.tuning == "full":
        item, kwargs = "whole", {}
    else:
        item, kwargs = "with_lora", {"peft_config": lora_settings(training.lora_rank), "seed": training.seed}
    by = {"module_name": _SITE_MODULE, "item_name": item, "kwargs": {"directory": model.directory, **kwargs}}
    settings = runner_settings(training, model, by)
    settings["training_args_conf"]["evaluation_strategy"] = "no"
    return settings


def _pipeline(flow: FlowAddress) -> Any:
    from fate_client.pipeline import FateFlowPipeline
    from fate_client.pipeline.conf.env_config import FlowConfig

    # otherwise `pipeline init` would have to write them into the installed package
    FlowConfig.IP, FlowConfig.PORT = flow.host, flow.port
    return FateFlowPipeline()


def _table(client: Party) -> str:
    return f"train-{client.role}"
