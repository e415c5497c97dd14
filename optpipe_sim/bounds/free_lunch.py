"""When offloading everything is free: equation 1 of PipeOffload (arXiv 2503.01328).

k is the round trip of a layer's activations over its compute time. With norms, GeLU and dropout
recomputed a GPT layer keeps 20 s b h bytes, so T_o = 40 s b h / B_o, one direction at a time; its
F, B and W take T_c = 12 s b h (6 h + s) / B_c. Everything can be offloaded for free if k <= 1.
"""

from __future__ import annotations


def free_lunch_ratio(
    hidden: int, seq: int, compute_tflops: float, offload_gb_per_s: float
) -> float:
    """k = 10 / (3 (6 h + s)) B_c / B_o.

    With the authors' rates (A100: 220 TFLOP/s, 15 GB/s) this gives their figure 1 (left) to .01 at
    s = 4096 and to .035 at 8192, and lies up to .053 above it at 32768. The reason is in the
    rates: the printed values are the formula's times a factor of the column alone (.997, .982, .965,
    .940 for s = 4096 to 32768), for every h, to the rounding of the figure. A missing term
    of the formula would depend on s / h. So the rates behind the figure changed with the sequence,
    as if copies ran at 15.0, 15.3, 15.5 and 16.0 GB/s; which of the two rates, is not published.
    """
    return 10 / (3 * (6 * hidden + seq)) * (compute_tflops * 1e12) / (offload_gb_per_s * 1e9)


def round_trip_ratio(f_ns: int, b_ns: int, w_ns: int, offload_ns: int, reload_ns: int) -> float:
    """k of a stage with profiled times: its round trip over its F, B and W."""
    return (offload_ns + reload_ns) / (f_ns + b_ns + w_ns)
