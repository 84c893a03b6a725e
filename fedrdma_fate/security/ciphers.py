"""Which cipher a processor is good at, and which one two gateways use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

AES = "aes-256-gcm"
"""AES-256-GCM (RFC 5116, section 5.2): the faster one where the processor has instructions for AES."""

CHACHA = "chacha20-poly1305"
"""ChaCha20-Poly1305 (RFC 8439): the faster one everywhere else. Every gateway has it."""

_CPU_INFO = Path("/proc/cpuinfo")


def own_ciphers(cpu_info: Path = _CPU_INFO) -> tuple[str, ...]:
    """What this host seals with, for the greeting: AES only where it is fast, and does not leak by its timing."""
    return (AES, CHACHA) if has_aes(cpu_info) else (CHACHA,)


def has_aes(cpu_info: Path = _CPU_INFO) -> bool:
    """Whether the processor has instructions for AES, as far as the kernel says (`flags`, on ARM `Features`)."""
    try:
        lines = cpu_info.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    features = (line.partition(":") for line in lines)
    return any("aes" in values.split() for name, _, values in features if name.strip() in ("flags", "Features"))


def agreed_cipher(own: Sequence[str], peer: Sequence[str]) -> str | None:
    """The cipher for both directions: AES where both sides have it, else ChaCha20; None where there is none."""
    return next((cipher for cipher in (AES, CHACHA) if cipher in own and cipher in peer), None)
