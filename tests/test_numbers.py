"""Numbers in files and for people: exact decimals, units, sizes and times."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optpipe_sim import (
    load_profile,
)
from optpipe_sim.errors import OptPipeError
from optpipe_sim.units import (
    as_size,
    exact,
    format_size,
    format_time,
    format_times,
    parse_size,
    parse_time,
    round_half_up,
    size_above,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("t_f_ms: 0.601", 601_000),
        ("t_f_ms: 18.522", 18_522_000),
        ("t_f_us: 0.0005", 1),  # half a nanosecond goes up
        ("t_f_ns: 2.5", 3),
        ("t_f_ns: 2.4999999999999999999999", 2),
        ("t_f_s: 1", 10**9),
        ("t_f_ms: 1e-3", 1_000),
        ("t_f_ms: 1e3", 10**9),
        ("t_f_us: 4.35", 4_350),  # 4.35 * 1000 is 4349.999... in binary
    ],
)
@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_decimals_are_exact_and_rounded_half_up(
    tmp_path: Path, text: str, ns: int, ending: str
) -> None:
    path = tmp_path / f"p.{ending}"
    key, number = text.split(": ")
    stage = f'"{key}": {number}, "t_b_ms": 1, "t_w_ms": 0, "act_bytes": 0'
    path.write_text(f'{{"devices": 1, "stages": {{{stage}}}}}')
    assert load_profile(path).stages[0].t_f_ns == ns


@given(st.decimals(0, 10**6, allow_nan=False, places=9))
def test_rounding_half_up_is_that_of_decimals(value: Decimal) -> None:
    assert round_half_up(exact(value)) == int(value.quantize(Decimal(1), rounding="ROUND_HALF_UP"))


@given(st.floats(0, 1e6, allow_nan=False))
def test_a_float_means_what_it_prints(value: float) -> None:
    assert exact(value) == Fraction(repr(value))


def test_units_of_profiles() -> None:
    profile = load_profile(
        {
            "devices": 1,
            "stages": {
                "t_f_s": 1,
                "t_b_us": 1,
                "t_w_ns": 1,
                "act_gib": 2,
                "w_mib": 1.5,
                "static_bytes": 7,
            },
            "t_comm_ms": {"latency_us": 20, "gb_per_s": 50, "message_mib": 32},
            "offload": {"d2h_gb_per_s": 21, "h2d_gb_per_s": 42, "host_limit_gib": 0.5},
            "memory_limit_mib": 5000,
        }
    )
    (stage,) = profile.stages
    assert (stage.t_f_ns, stage.t_b_ns, stage.t_w_ns) == (10**9, 1000, 1)
    assert (stage.act_bytes, stage.w_bytes, stage.static_bytes) == (2**31, 3 * 2**19, 7)
    assert (profile.latency_ns, profile.occupancy_ns) == (20_000, 671_089)  # 2^25 / 50 = 671088.64
    assert (stage.t_offload_ns, stage.t_reload_ns) == (102_261_126, 51_130_563)  # 2^31 / 21, / 42
    assert profile.offload is not None
    assert profile.offload.host_limit_bytes == 2**29
    assert profile.memory_limit == (5000 * 2**20,)


@pytest.mark.parametrize(
    ("text", "size"),
    [("40GiB", 40 * 2**30), ("512 mib", 2**29), ("200B", 200), ("7", 7), (8, 8), ("1.5KiB", 1536), ("0.5B", 1), ("2GB", 2 * 10**9)],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1 parsec", "1e3GiB", "nan", None, True])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(
        OptPipeError, match="is not a size: write 40GiB, 512MiB, 200B or plain bytes"
    ):
        parse_size(text)


def test_sizes_beyond_64_bits_are_refused() -> None:
    assert parse_size(f"{2**32}GiB") == as_size("limit", 2**62) == 2**62
    for size in (f"{2**32 + 1}GiB", 2**62 + 1):
        with pytest.raises(OptPipeError, match=f"is more than {2**62} bytes"):
            as_size("limit", size)


def test_numbers_for_people() -> None:
    assert [format_size(size) for size in (7, 1536, 2**31, 2**40)] == [
        "7 B",
        "1.5 KiB",
        "2 GiB",
        "1 TiB",
    ]
    assert [format_time(time) for time in (0, 1500, 18_522_000, 2 * 10**9)] == [
        "0 ns",
        "1.5 us",
        "18.52 ms",
        "2 s",
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (200, "200B"),
        (40 * 2**30, "40GiB"),
        (parse_size("71.8GiB"), "71.8GiB"),
        (parse_size("71.82GiB"), "71.82GiB"),
        (17310 * 2**20, "17310MiB"),
        (2**30 + 1, f"{2**30 + 1}B"),
    ],
)
def test_sizes_to_type_again(size: int, text: str) -> None:
    assert size_text(size) == text
    assert parse_size(text) == size


@given(st.integers(0, 2**45))
def test_sizes_to_type_again_are_exact_or_hardly_above(size: int) -> None:
    assert parse_size(size_text(size)) == size
    above = parse_size(size_above(size))
    assert size <= above <= size + max(size // 100, 0) + 1


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=4))
def test_different_times_look_different(times: list[int]) -> None:
    texts = format_times(*times)
    assert len(set(texts)) == len(set(times))


@pytest.mark.parametrize(
    ("text", "time"), [("1.5s", 1_500_000_000), ("120 ms", 120_000_000), ("20us", 20_000), ("7", 7)]
)
def test_times_are_read(text: str, time: int) -> None:
    assert parse_time(text) == time
    for wrong in ("", "1h", "-1ms", "ms", True):
        with pytest.raises(OptPipeError, match="is not a time"):
            parse_time(wrong)
