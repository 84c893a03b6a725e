"""python examples/gpt2_advertisegen/run_silo.py: one silo of the job, on its own host. --help lists the options."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # imports are from the repository, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from examples.gpt2_advertisegen.silo_command import main

    main()
