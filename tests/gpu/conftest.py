"""Tests that need a GPU; without one each is skipped by its name."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.skip(reason=f"{item.name}: needs a GPU"))
