"""What a thread runs just now: linears, parts and attention ask for it wherever they are in a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_thread = threading.local()


def current(what: str) -> Any:
    """Return what this thread runs: the ``queue`` of weight gradients (`split`), the ``dropping`` of parts that are
    recomputed (`recompute`), or the ``slice`` of the sequence (`sliced`); None outside of `running`."""
    return getattr(_thread, what, None)


@contextmanager
def running(**these: Any) -> Iterator[None]:
    """Inside the block, have these be `current` in this thread."""
    before = {what: current(what) for what in these}
    vars(_thread).update(these)
    try:
        yield
    finally:
        vars(_thread).update(before)
