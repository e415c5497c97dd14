"""Whether torchrun has started this process."""

from __future__ import annotations

import os


def torchrun_rank() -> int | None:
    """Return the rank of this process among those that torchrun has started; None where it did not."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None
