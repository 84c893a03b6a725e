"""Prepares a run in a process of its own, so that the job process never holds a model.

Writes the tokenizer and the model (unless the user gave real weights), every client's share of the data, and
`model.json` with what the others need to know.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from examples.gpt2_advertisegen.data import COLUMNS, Row, disjoint_shares, read_rows, write_rows
from examples.gpt2_advertisegen.plan import CLIENTS, USAGE_STATUS, ModelFacts, PrepareRequest, RunFiles
from fedrdma_fate.bench.table3 import count_parameters
from fedrdma_fate.wire.errors import FedRDMAError


def prepare(request: PrepareRequest) -> ModelFacts:
    """Write all that the silos read.

    Raises:
        ConfigError: the data or the given model cannot be used.
    """
    files = RunFiles(Path(request.output))
    train = read_rows(Path(request.data) / "train.json")
    dev = read_rows(Path(request.data) / "dev.json")
    train_shares = disjoint_shares(train, len(CLIENTS), request.samples, request.seed)
    available = len(dev) // len(CLIENTS)
    held_out = available if request.held_out is None else min(request.held_out, available)
    dev_shares = disjoint_shares(dev, len(CLIENTS), held_out, request.seed)
    for client, train_share, dev_share in zip(CLIENTS, train_shares, dev_shares, strict=True):
        silo = files.silo(client)
        silo.directory.mkdir(parents=True, exist_ok=True)
        write_rows(silo.train, train_share)
        write_rows(silo.held_out, dev_share)
    directory, pad_token = _prepare_model(request, files, [*train, *dev])
    counted = count_parameters(directory, request.lora_rank if request.tuning == "lora" else None)
    return ModelFacts(
        directory=str(directory),
        pretrained=request.model is not None,
        parameters=counted.parameters,
        trainable=counted.trainable,
        trainable_arrays=counted.trainable_arrays,
        pad_token=pad_token,
        train_rows=len(train_shares[0]),
        held_out_rows=held_out,
    )


def _prepare_model(request: PrepareRequest, files: RunFiles, rows: list[Row]) -> tuple[Path, str]:
    """The model's directory and the token that pads its rows."""
    # takes seconds to import; what is wrong with the data is told before
    from examples.gpt2_advertisegen.model import build_model, check_pretrained, train_tokenizer

    if request.model is not None:
        given = Path(request.model)
        return given, check_pretrained(given, request.max_length)
    tokenizer = train_tokenizer((row[column] for row in rows for column in COLUMNS), request.shape.vocabulary)
    tokenizer.save_pretrained(files.model)
    build_model(request.shape, tokenizer.eos_token_id, request.seed).save_pretrained(files.model)
    return files.model, str(tokenizer.eos_token)


def main(request_file: Path) -> int:
    """Run one request; the exit status."""
    request = msgspec.json.decode(request_file.read_bytes(), type=PrepareRequest)
    try:
        facts = prepare(request)
    except FedRDMAError as error:
        print(error, file=sys.stderr)
        return USAGE_STATUS
    RunFiles(Path(request.output)).model_facts.write_bytes(msgspec.json.encode(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
