"""python examples/gpt2_advertisegen/flow.py: the job by FATE Flow, between two sites or at one; see --help."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # imports are from the repository, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

    from examples.gpt2_advertisegen.flow_command import main

    main()
