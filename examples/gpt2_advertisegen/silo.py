"""One party's process: a FATE context over the chosen federation, and FATE-LLM's Seq2Seq FedAvg in it."""

from __future__ import annotations

import faulthandler
import hashlib
import logging
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import safetensors.torch
import torch
import transformers
from fate.arch import Context
from fate.arch.computing.backends.standalone import CSession

from examples.gpt2_advertisegen.events import FateTimings
from examples.gpt2_advertisegen.federations import open_federation
from examples.gpt2_advertisegen.model import trainable_state
from examples.gpt2_advertisegen.plan import SiloConfig, SiloOutcome, slug
from examples.gpt2_advertisegen.tables import restrict_tables
from examples.gpt2_advertisegen.training import run_client, run_server
from fedrdma_fate.obs.trace import Trace

logger = logging.getLogger(__name__)


def run_silo(config: SiloConfig) -> SiloOutcome:
    """Take part in the job from the first message to the last."""
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    # initial LoRA weights are drawn before the trainer sets its seed
    transformers.set_seed(config.training.seed)
    events = Trace(config.files.events)
    FateTimings(events).attach()
    restrict_tables()
    computing = CSession(f"{config.session}_{slug(config.party)}", data_dir=config.computing_directory)
    federation = open_federation(config, computing)
    context = Context(computing=computing, federation=federation)
    digest = ""
    if config.is_client:
        state = trainable_state(run_client(config, context, events))
        safetensors.torch.save_file(dict(state), config.files.weights)
        digest = state_digest(state)
    else:
        run_server(config, context)
    if config.federation == "fedrdma":
        federation.destroy()
    events.emit("finished")
    return SiloOutcome(model_sha256=digest, peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.numpy()).cast("B"))
    return digest.hexdigest()


def main(config_file: Path) -> int:
    """Run the silo described by a file; the exit status."""
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = msgspec.json.decode(config_file.read_bytes(), type=SiloConfig)
    try:
        outcome = run_silo(config)
    except Exception:
        logger.exception("%s failed", config.party)
        return 1
    config.files.outcome.write_bytes(msgspec.json.encode(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
