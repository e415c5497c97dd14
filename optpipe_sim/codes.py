"""The codes of op kinds as plain integers, for compiled loops; `ops.OpKind` gives them names.

Compute ops come before transfers: ``kind < O`` tells them apart.
"""

F, B, W, BW, C, O, R = range(7)  # noqa: E741
KINDS = 7
