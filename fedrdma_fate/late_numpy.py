"""numpy (28 MB) is loaded where a data path first has a use for it, and not by every gateway."""

from __future__ import annotations

import importlib
import sys
import threading


def is_loaded() -> bool:
    """Whether it can be used without waiting, but for the rest of a loading that is under way."""
    return "numpy" in sys.modules


def prepare() -> bool:
    """Have numpy loaded; whether it is.

    Loading takes a tenth of a second, which is not for a link's thread. It is best begun when nothing moves: where a
    path is made, or a transfer has ended.
    """
    if is_loaded():
        return True
    threading.Thread(target=importlib.import_module, args=["numpy"], name="load-numpy", daemon=True).start()
    return False
