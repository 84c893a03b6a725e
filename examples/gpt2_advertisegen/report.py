"""The run for people: a table at the terminal, and a report with plots."""

from __future__ import annotations

from pathlib import Path

from examples.gpt2_advertisegen.plan import CLIENTS, PARTIES
from examples.gpt2_advertisegen.progress import describe_model
from examples.gpt2_advertisegen.summary import Summary
from fedrdma_fate.bench.plots import Series, bar_plot, line_plot, stacked_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes, format_seconds, write_report


def round_table(summary: Summary) -> DataTable:
    """Loss, bytes and communication of every party in every round."""
    columns = ("Party", "Round", "Loss", "Held-out loss", "Sent", "Received", "Communication", "Round took", "Share")
    rows = []
    for party in map(str, PARTIES):
        losses, held_out = summary.losses.get(party, []), summary.held_out_losses.get(party, [])
        for number in range(summary.training.rounds):
            rows.append(
                (
                    party,
                    str(number + 1),
                    f"{losses[number]:.4f}" if number < len(losses) else "–",
                    f"{held_out[number]:.4f}" if number < len(held_out) else "–",
                    format_bytes(summary.round_bytes_pushed[party][number]),
                    format_bytes(summary.round_bytes_got[party][number]),
                    format_seconds(summary.communication_seconds[party][number]),
                    format_seconds(summary.round_seconds[party][number]),
                    f"{summary.communication_share[party][number]:.1%}",
                )
            )
    return DataTable("Rounds", columns, rows)


def memory_table(summary: Summary) -> DataTable:
    """Peak memory of every process."""
    rows = [(process, format_bytes(peak)) for process, peak in summary.peak_memory_bytes.items()]
    rows.append(("all at once, shared memory counted once", format_bytes(summary.peak_total_bytes)))
    return DataTable("Peak memory", ("Process", "Resident"), rows)


def link_table(summary: Summary) -> DataTable:
    """The data paths between the gateways."""
    rows = [(f"{link.site} → {link.peer}", link.transport, link.reason) for link in summary.links]
    return DataTable("Data paths", ("Gateways", "Transport", "Why"), rows)


def headline(summary: Summary) -> list[str]:
    """What the run was and what it showed, a sentence each."""
    first, last = _mean_loss(summary, 0), _mean_loss(summary, -1)
    training = summary.training
    tuning = f"LoRA of rank {training.lora_rank}" if training.tuning == "lora" else "full tuning"
    how = (
        f"over fedrdma, mode {summary.mode}, transport {summary.transport} ({_chosen_transports(summary)})"
        if summary.federation == "fedrdma"
        else "over FATE's own standalone federation"
    )
    masks = (
        "Masks of the secure aggregation were derived from the seed, so that runs can be compared bit by bit; "
        "with --masks random FATE draws them."
        if training.masks == "seeded"
        else "Masks of the secure aggregation were drawn by FATE."
    )
    sentences = [
        f"FATE-LLM Seq2Seq FedAvg with secure_aggregate, {tuning}, {how}.",
        f"{describe_model(summary.model)}.",
        f"Mean training loss of the clients: {first:.4f} in round 1, {last:.4f} in round {training.rounds}.",
        masks,
    ]
    pushed = sum(summary.bytes_pushed.values())
    if summary.federation == "fedrdma":
        delivered = sum(summary.bytes_delivered.values())
        sentences.append(
            f"FATE pushed {pushed:,} bytes; the gateways delivered {delivered:,}; "
            f"{summary.bytes_outside_backend} bytes went another way."
        )
    else:
        sentences.append(f"FATE pushed {pushed:,} bytes.")
    return sentences


def write_run_report(page: Path, summary: Summary) -> list[Path]:
    """The HTML page, with its plots as PNG files beside it; all paths written, the page first."""
    tables = [round_table(summary), memory_table(summary)]
    if summary.links:
        tables.append(link_table(summary))
    return write_report(page, "GPT-2 on AdvertiseGen across three silos", headline(summary), tables, _plots(summary))


def _plots(summary: Summary) -> list[Plot]:
    rounds = list(range(1, summary.training.rounds + 1))
    labels = [f"round {number}" for number in rounds]
    parties = [str(party) for party in PARTIES]
    losses = [Series(f"{party} training", summary.losses[str(party)]) for party in CLIENTS]
    losses += [Series(f"{party} held-out", summary.held_out_losses[str(party)]) for party in CLIENTS]
    busy = [Series(party, summary.communication_seconds[party]) for party in parties]
    memory = [Series("peak", [peak / 1e9 for peak in summary.peak_memory_bytes.values()])]
    processes = list(summary.peak_memory_bytes)
    split = "Where a round's time goes"
    return [
        Plot("loss", "Loss by round", line_plot("Loss", "round", "loss", rounds, losses)),
        Plot("time", f"{split}, mean over the rounds", stacked_plot(split, "seconds", parties, _time_split(summary))),
        Plot(
            "communication",
            "Seconds of communication by round and party",
            bar_plot("Communication", "seconds", labels, busy),
        ),
        Plot(
            "memory",
            "Peak resident memory by process; shared memory counts in every process that touched it",
            bar_plot("Peak memory", "GB", processes, memory),
        ),
    ]


def _time_split(summary: Summary) -> list[Series]:
    """Mean seconds per round of each party: computing, communicating, waiting for others."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    parties = [str(party) for party in PARTIES]
    communication = [mean(summary.communication_seconds[party]) for party in parties]
    waiting = [mean(summary.waiting_seconds[party]) for party in parties]
    total = [mean(summary.round_seconds[party]) for party in parties]
    computing = [max(0.0, whole - busy - idle) for whole, busy, idle in zip(total, communication, waiting, strict=True)]
    return [
        Series("computing", computing),
        Series("communication", communication),
        Series("waiting for others", waiting),
    ]


def _chosen_transports(summary: Summary) -> str:
    """The transports that the gateways opened, and why: `shm: both gateways run on one host`."""
    return "; ".join(sorted({f"{link.transport}: {link.reason}" for link in summary.links})) or "no data path opened"


def _mean_loss(summary: Summary, number: int) -> float:
    values = [losses[number] for losses in summary.losses.values()]
    return sum(values) / len(values)
