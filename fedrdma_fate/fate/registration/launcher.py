"""`fate.arch.launchers`: parties as processes of one script, with the backend chosen on the command line."""

# no `from __future__ import annotations`: FATE's argument parser reads the types of the dataclass below

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fedrdma_fate.fate.registration.extension import Extension
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_STANDALONE, _SPARK = "standalone", "spark"
"""FATE's names of the computing engines that go with this backend in a launcher."""


@dataclass
class FedRDMALauncherArguments:
    """Extra command-line arguments of FATE's launcher.

    Attributes:
        federation_engine: `fedrdma` for this backend.
        context_type: FATE's own; only `local` computing can be combined with this backend.
        computing_engine: `spark` for FATE's engine of that name, which starts a Spark for each party as Spark's own
            configuration says. FATE's launcher has no choice there.
        federation_address: `unix:///path` of the gateway's socket.
        fedrdma_gateways: where each silo has its own: `guest:9999=unix:///a.sock,host:10000=unix:///b.sock`.
        fedrdma_mode: transfer mode of this job, empty for the gateway's own.
        fedrdma_connect_timeout: seconds.
        fedrdma_put_timeout: seconds, 0 for the gateway's own.
        fedrdma_get_timeout: seconds, 0 for ever.
        fedrdma_journal: file for a record of every put and get.
        fedrdma_allowed_names: further names that received objects may use: `module:name`, separated by commas.
        fedrdma_tasks_access: file by which tasks on other hosts get to the gateway, as executors of Spark may be.
        fedrdma_loss_tolerance: share of the updates of FATE's aggregation that may be missing on the way: 0 to 0.2.
        fedrdma_straggler_wait: share of the others' time that the last update is waited for; less than 0: until it was
            sent.
    """

    federation_engine: str = "standalone"
    context_type: str = "local"
    computing_engine: str = _STANDALONE
    federation_address: str = ""
    fedrdma_gateways: str = ""
    fedrdma_mode: str = ""
    fedrdma_connect_timeout: float = 30.0
    fedrdma_put_timeout: float = 0.0
    fedrdma_get_timeout: float = 0.0
    fedrdma_journal: str = ""
    fedrdma_allowed_names: str = ""
    fedrdma_tasks_access: str = ""
    fedrdma_loss_tolerance: float = 0.0
    fedrdma_straggler_wait: float = -1.0


def _extend_context_helper(module: ModuleType) -> None:
    original = module.init_context

    @functools.wraps(original)
    def init_context(computing_session_id: str, federation_session_id: str) -> Any:
        arguments = module.HfArgumentParser(FedRDMALauncherArguments).parse_known_args()[0]
        if arguments.federation_engine != "fedrdma":
            return original(computing_session_id, federation_session_id)
        return _fedrdma_context(module, arguments, computing_session_id, federation_session_id)

    module.init_context = init_context  # type: ignore[attr-defined]


def _fedrdma_context(module: ModuleType, arguments: Any, computing_session_id: str, federation_session_id: str) -> Any:
    if arguments.context_type != "local":
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"--context_type is {arguments.context_type!r} with --federation_engine fedrdma.",
            "Use --context_type local.",
        )
    from fate.arch.context import Context

    from fedrdma_fate.fate.registration.factory import build_federation

    local = module.HfArgumentParser(module.LauncherLocalContextArgs).parse_args_into_dataclasses(
        return_remaining_strings=True
    )[0]
    computing = _computing(arguments.computing_engine, computing_session_id, local.data_dir)
    parties = module.get_parties(local.parties)
    federation = build_federation(
        federation_session_id, computing, parties[local.rank], parties, settings_from(arguments)
    )
    return Context(computing=computing, federation=federation)


def _computing(engine: str, session_id: str, data_dir: str | None) -> Any:
    if engine == _SPARK:
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"--computing_engine is {engine!r}, and pyspark is not installed.",
                "Install pyspark in FATE's environment, or use --computing_engine standalone.",
            )
        from fate.arch.computing.backends.spark import CSession as SparkSession

        # else workers run whatever is called python3, which need not have FATE
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return SparkSession(session_id)
    if engine != _STANDALONE:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"--computing_engine is {engine!r} with --federation_engine fedrdma.",
            f"Use {_STANDALONE} or {_SPARK}.",
        )
    from fate.arch.computing.backends.standalone import CSession
    from fate.arch.launchers.paths import get_base_dir

    return CSession(session_id=session_id, data_dir=data_dir or os.path.join(get_base_dir(), "data"))


def settings_from(arguments: Any) -> dict[str, Any]:
    """The arguments as settings.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when the mapping of gateways is not one.
    """
    return {
        "gateway": arguments.federation_address or None,
        "gateways": _parse_gateways(arguments.fedrdma_gateways),
        "mode": arguments.fedrdma_mode or None,
        "connect_timeout": arguments.fedrdma_connect_timeout,
        "put_timeout": arguments.fedrdma_put_timeout or None,
        "get_timeout": arguments.fedrdma_get_timeout or None,
        "journal": arguments.fedrdma_journal or None,
        "allowed_names": [entry.strip() for entry in arguments.fedrdma_allowed_names.split(",") if entry.strip()],
        "tasks_access": arguments.fedrdma_tasks_access or None,
        "loss_tolerance": arguments.fedrdma_loss_tolerance,
        "straggler_wait": None if arguments.fedrdma_straggler_wait < 0 else arguments.fedrdma_straggler_wait,
    }


def _parse_gateways(text: str) -> dict[str, str]:
    gateways = {}
    for entry in filter(None, text.split(",")):
        party, separator, address = entry.partition("=")
        if not separator or not party or not address:
            raise ConfigError(
                ErrorCode.CONFIG_BAD_VALUE,
                f"--fedrdma_gateways has the entry {entry!r}.",
                "Write role:party=unix:///path, separated by commas.",
            )
        gateways[party.strip()] = address.strip()
    return gateways


EXTENSIONS = (
    Extension(
        "fate.arch.launchers.context_helper",
        ("init_context", "HfArgumentParser", "LauncherLocalContextArgs", "get_parties"),
        _extend_context_helper,
    ),
)
