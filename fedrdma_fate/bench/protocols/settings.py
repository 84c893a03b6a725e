"""What `fedrdma bench protocols` is asked to measure: silos, a model, the network between."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.bench.incast.settings import NIC_SPEEDUP, parse_silos
from fedrdma_fate.bench.protocols.models import Model, parse_model
from fedrdma_fate.bench.protocols.stress import Stress
from fedrdma_fate.bench.protocols.training import Training
from fedrdma_fate.bench.report import format_bytes
from fedrdma_fate.bench.wan.settings import Peculiarities, parse_settings
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

NETWORK_BPS = {"3g": 5_000_000, "4g": 20_000_000, "wifi": 60_000_000}
"""FedComm, section 4: rates of the networks, bit/s."""
QUEUE_MILLISECONDS = 50
"""FedComm's `tbf … latency 50ms`: what its queue holds, in time at the rate."""
TBF_BURST_BYTES = 1600
"""FedComm's `tbf … burst 1600`: `tc` adds it to what the queue holds."""
LAN_BPS = 1_000_000_000
"""Of what nobody limits, where only the silos are."""
FEDCOMM_MTU_BYTES = 1500
"""Of Ethernet, as FedComm's virtual machines have."""
LIMITED = ("silos", "all")


@dataclasses.dataclass(frozen=True, slots=True)
class ProtocolSetting:
    """Silos, and the model that goes to each and comes back.

    Attributes:
        link: the network; its rate is that of the limited links.
        silos: how many.
        model: that is exchanged.
        limited: `all`: the links in front of every host, the server's too; `silos`: what each silo sends, alone.
        loopback: plain processes of this machine instead, in real time; of the link, `udp-indexed` keeps to its rate.
        training: what silos train, and so exchange; None: models are made up.
        stress: what makes the rounds harder; None: nothing.
    """

    link: WanLink
    silos: int
    model: Model
    limited: str = "all"
    loopback: bool = False
    training: Training | None = None
    stress: Stress | None = None

    @property
    def payload_bytes(self) -> int:
        """Of a round, each way."""
        return self.silos * self.model.size

    @property
    def down_bps(self) -> float:
        """At which the server can send to each silo, when to all at once."""
        if self.limited == "silos":
            return LAN_BPS / self.silos
        return min(self.link.rate_bps, (self.link.nic_rate_bps or NIC_SPEEDUP * self.link.rate_bps) / self.silos)

    @property
    def up_bps(self) -> float:
        """At which each silo can send, when all do."""
        if self.limited == "silos":
            return min(self.link.rate_bps, LAN_BPS / self.silos)
        return self.link.rate_bps / self.silos

    @property
    def network(self) -> WanLink:
        """As the testbed takes it: where only the silos are limited, the link in front of each host is a LAN."""
        if self.limited == "all":
            return self.link
        return dataclasses.replace(self.link, rate_bps=LAN_BPS, nic_rate_bps=self.link.nic_rate_bps or LAN_BPS)

    @property
    def host_options(self) -> tuple[str, ...]:
        """Options of `scripts/testbed run` for the hosts."""
        hosts = ("--hosts", str(self.silos + 1))
        if self.limited == "all":
            return hosts
        cards = (("--host", f"{silo}:nic-rate={self.link.rate_bps}bit") for silo in range(1, self.silos + 1))
        return (*hosts, *(part for card in cards for part in card))

    def __str__(self) -> str:
        harder = "" if self.stress is None else f", {self.stress}"
        if self.loopback:
            return f"{self.silos} silos with {self.model.name} ({format_bytes(self.model.size)}) over loopback{harder}"
        whose = "" if self.limited == "all" else ", what silos send alone is limited"
        exchanged = f"{self.silos} silos with {self.model.name} ({format_bytes(self.model.size)})"
        return f"{exchanged} over {self.link}{whose}{harder}"


def network_options(network: str) -> tuple[str, str]:
    """Rate and buffer of FedComm's network, as the options take them.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: there is none of this name.
    """
    if network not in NETWORK_BPS:
        problem = f"--network: {network!r} is none of {', '.join(NETWORK_BPS)}."
        raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, problem)
    rate = NETWORK_BPS[network]
    return f"{rate}bit", f"{rate // 8 * QUEUE_MILLISECONDS // 1000 + TBF_BURST_BYTES}"


def parse_protocol_settings(
    silos: str,
    models: str,
    networks: str | None,
    rates: str,
    rtts: str,
    buffers: str,
    losses: str,
    limited: str,
    common: Peculiarities,
) -> list[ProtocolSetting]:
    """All combinations of what the options list, with commas between: silos outermost, models innermost.

    Args:
        networks: names of FedComm's, which stand for rates and buffers; None: `rates` and `buffers` do.

    Raises:
        ConfigError: CONFIG_BAD_VALUE for a value that cannot be read, or is given twice; names the option.
    """
    counts, asked = parse_silos(silos), [parse_model(text) for text in models.split(",")]
    pairs = [(rates, buffers)] if networks is None else [network_options(name.strip()) for name in networks.split(",")]
    for name, values in (("--model", [model.size for model in asked]), ("--network", pairs)):
        if len(set(values)) < len(values):
            raise ConfigError(ErrorCode.CONFIG_BAD_VALUE, f"{name}: a value is given twice.")
    links = [
        one.link
        for rate, buffer in pairs
        for one in parse_settings(rate, rtts, buffer, losses, "1B", common=_with_mtu(common))
    ]
    return [ProtocolSetting(link, count, model, limited) for count in counts for link in links for model in asked]


def _with_mtu(common: Peculiarities) -> Peculiarities:
    return common if common.mtu_bytes is not None else dataclasses.replace(common, mtu_bytes=FEDCOMM_MTU_BYTES)
