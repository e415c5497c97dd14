"""What is compared with published runs, and what estimates say of their own error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from experiments.cells import to_csv
from experiments.costs_runs.fit import (
    EXPERT_SOURCES,
    FP8_SOURCES,
    fit,
    fit_experts,
    fit_fp8_h100,
    layout_of,
)
from experiments.costs_runs.kernels import PARTS, kernels, reached
from experiments.costs_runs.microbatches import sweeps
from experiments.costs_runs.microbatches import table as size_table
from experiments.costs_runs.report import Pair, _right, arms, judged, report_text
from experiments.costs_runs.run import (
    compare,
    data_text,
    estimated,
    held_out,
    measured_ns,
    table_text,
)
from experiments.published import published
from optpipe_sim import build, simulate
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.data_files import data_file
from optpipe_sim.costs.doubt import (
    POOR,
    Compared,
    best_published,
    caution,
    checks,
    compared,
    doubt,
    interval,
    plausibility,
    pools,
)
from optpipe_sim.costs.layer import Gemm, layer
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.machine_files import machine_names
from optpipe_sim.costs.models import parameters
from optpipe_sim.costs.provenance import iteration_ns, mfu, mfu_ceiling, sync_seconds
from optpipe_sim.costs.roofline import cast_bytes, gemm_dtype, gemm_seconds, message_seconds
from optpipe_sim.costs.work import Message, Work
from optpipe_sim.errors import OptPipeError

QWEN = load_model("qwen3-235b-a22b")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows():
    return [*compare(), *held_out(ROOT / "results" / "costs_cells.csv")]


def test_committed_comparison_is_what_the_estimates_give_today(rows) -> None:
    data = published("runs")
    inside = ROOT / "optpipe_sim" / "costs" / "data" / "compared" / "runs.yaml"
    assert inside.read_text() == data_text(rows, data["records"])
    assert (ROOT / "results" / "costs_runs.csv").read_text() == table_text(rows)
    reached = list(kernels())
    assert (ROOT / "results" / "costs_kernels.csv").read_text() == to_csv(reached)
    sizes = list(sweeps())
    table = to_csv(list(size_table(sizes)))
    assert (ROOT / "results" / "costs_microbatches.csv").read_text() == table
    text = report_text(rows, data, reached, sizes)
    assert (ROOT / "results" / "costs_runs.md").read_text() == text
    assert len(rows) == len(compared())


def _median(machine: str, kind: str, dtypes: set[str], source: str = "") -> float:
    found = [
        abs(one.error)
        for one in compared()
        if (one.machine, one.kind) == (machine, kind)
        and one.dtype in dtypes
        and one.source.startswith(source)
        and one.error is not None
    ]
    assert len(found) >= 2
    return median(found)


def test_estimates_stay_as_near_as_they_are() -> None:
    assert _median("a100-80gb", "dense", {"fp16"}) < 0.025  # held out by the fit
    assert _median("a100-80gb", "dense", {"bf16"}, "MosaicML") < 0.09
    assert _median("b200-sxm", "dense", {"bf16"}) < 0.06
    assert _median("b200-sxm", "experts", {"bf16"}) < 0.04
    assert _median("h100-sxm", "dense", {"bf16"}, "Meta") < 0.04
    for machine in ("h100-sxm", "b200-sxm", "gb200"):
        assert _median(machine, "dense", {"fp8"}) < 0.1


def _peaks(source: str) -> list[float]:
    found = [
        one.memory
        for one in compared()
        if one.role == "check" and one.source.startswith(source) and one.memory is not None
    ]
    assert len(found) >= 4
    return found


def test_peaks_and_times_of_runs_that_no_rate_was_fitted_to() -> None:
    simumax = [one for one in compared() if one.source.startswith("SimuMax")]
    times = [one.error for one in simumax if one.role == "check" and one.error is not None]
    assert median(map(abs, times)) < 0.05
    assert max(map(abs, times)) < 0.12
    assert abs(median(times)) < 0.01  # to neither side
    assert median(map(abs, _peaks("SimuMax"))) < 0.02
    assert max(map(abs, _peaks("SimuMax"))) < 0.12
    assert median(map(abs, _peaks("NVIDIA Megatron-LM"))) < 0.05


def test_no_layout_is_compared_at_rates_that_saw_it() -> None:
    fitted = fit()
    shipped = load_machine("b200").rates
    assert fitted[None] == pytest.approx({key: getattr(shipped, key) for key in fitted[None]}, 0.01)
    rows = [row for row in published("runs")["rows"] if row["source"] == "simumax"]
    assert len(rows) == 22
    assert len(fitted) == 1 + len({layout_of(row) for row in rows})
    for row in rows:
        assert "role" not in row
        assert row["rates"] == pytest.approx(fitted[layout_of(row)], rel=0.01)
        assert row["rates"] != fitted[None]


def test_no_setting_with_experts_on_h100s_is_compared_at_rates_that_saw_it() -> None:
    fitted, shipped = fit_experts(), load_machine("h100").rates
    assert fitted[None] == {key: getattr(shipped, key) for key in fitted[None]}
    assert list(fitted) == [None, "megatron", "arms", "moonlight", "qwen"]
    for source, setting in EXPERT_SOURCES.items():
        assert published("runs")["sources"][source]["options"]["rates"] == fitted[setting]
    assert _median("h100-sxm", "experts", {"bf16"}) < 0.1  # 26 % at the rates assumed before
    assert _median("h100-sxm", "experts", {"fp8"}) < 0.1  # no fit has seen these


def test_choices_change_times_the_way_they_did() -> None:
    found = list(arms(compared()))
    runs = {arm.run: [one for one in found if one.run == arm.run] for arm in found}
    assert [len(own) for own in runs.values()] == [3, 2, 6, 2, 2, 6, 2]
    changes = {
        (arm.run, arm.choice): arm.against(own[0])[0] for own in runs.values() for arm in own[1:]
    }
    for (run, choice), time in changes.items():
        # TransformerEngine has fused the norms of LLaMA: they cost nothing
        assert time.agrees or (run, choice) == ("LLaMA-3-70B SFT", "core_attn + layernorm")
        if choice == "overlapped exchange":
            # at rates that saw no run of Qwen3-30B the layers' launches, which no exchange hides behind, are missing
            near = 0.11 if run.startswith("Qwen3") else 0.03
            assert time.estimated == pytest.approx(time.published, abs=near)
        if run == "DeepSeek-V3 of 14 layers":
            assert time.estimated == pytest.approx(time.published, abs=0.055)
    lines = dict(line.removeprefix("| ").split(" | ", 1) for line in judged(found))
    assert lines["Moonlight 16B"].startswith("5 of 5 | 11 of 15 |")
    assert lines["LLaMA-3-70B SFT"].startswith("4 of 5 (4 of 4) | 14 of 15 (14 of 14)")


def test_recomputation_never_raises_a_peak() -> None:
    """Published ones are raised where the estimate has no reason for it: TransformerEngine's fused norms, and Qwen3's."""
    found = list(arms(compared()))
    first = {arm.run: arm for arm in reversed(found)}
    for arm in found:
        gib = arm.against(first[arm.run])[1]
        if gib is not None:
            assert gib.estimated <= 1e-5
            assert gib.agrees or gib.published > 0


def test_signs_and_orders_are_counted() -> None:
    some = [Pair(0.1, 0.2), Pair(-0.1, 0.0), Pair(0.001, 0.0), None]
    assert _right(some, 0.01) == "1 of 3 (1 of 2)"
    assert _right([None], 0.01) == ""
    assert _right([Pair(0.5, 0.1)], 0.01) == "1 of 1"


def _doubt(model: str, machine: str, **options):
    layout = {
        key: options.pop(key)
        for key in ("devices", "tp", "cp", "ep", "dp", "zero")
        if key in options
    }
    work = Work(1, 4096, layout.get("tp", 1), layout.get("cp", 1), layout.get("ep", 1), **options)
    return doubt(load_model(model), load_machine(machine), Layout(**layout), work)


def test_a_number_is_given_only_where_every_feature_was_compared() -> None:
    plain = _doubt("llama3-8b", "h100", devices=8, tp=8)
    assert plain.error is not None
    assert plain.unmeasured == ()
    assert plain.runs >= 3
    absent = _doubt("llama3-8b", "b200", devices=8, recompute="norms")
    assert absent.error is None
    assert absent.unmeasured == ("recomputation of norms",)
    assert "none of them has recomputation of norms" in absent.basis
    # experts in tf32 on H100s: only fp8 and bf16 runs are there
    experts = _doubt("qwen3-30b-a3b", "h100", devices=8, ep=8, dp=8, dtype="tf32")
    assert experts.error is None
    assert "no published run of models with experts in tf32 on h100-sxm" in experts.basis
    assert "in other formats" in experts.basis


@pytest.mark.parametrize("machine", ["h100", "a100", "b200"])
@pytest.mark.parametrize(
    "unseen", [{"recompute": "norms"}, {"cuda_graphs": True}, {"gradient_sums": "apart"}]
)
def test_what_no_run_had_never_makes_a_time_surer(machine: str, unseen: dict[str, object]) -> None:
    plain = _doubt("llama3-8b", machine, devices=8, tp=8)
    other = _doubt("llama3-8b", machine, devices=8, tp=8, **unseen)
    assert other.interval[0] <= plain.interval[0]
    assert other.interval[1] >= plain.interval[1]


def test_an_irrelevant_option_leaves_the_doubt_as_it_is() -> None:
    plain = _doubt("llama3-8b", "a100", devices=8, zero=1)
    other = _doubt("llama3-8b", "a100", devices=8, zero=1, recompute="full")
    assert plain == other
    assert plain.interval is not None
    assert plain.interval[0] < plain.interval[1]


def test_an_interval_by_hand() -> None:
    def run(source: str, error: float) -> Compared:
        return Compared("a100-80gb", "dense", "bf16", frozenset(), error, 0.4, 0.4, "run", source)

    one = [run("a, table 1", 0.0), run("a, table 2", 0.0)]
    assert interval((one, [])) is None
    # each of two sources deviates from the other's median by log(1.1); the median of both is the lower one
    both = [*one, run("b", 0.1)]
    assert interval((one, both)) == pytest.approx((1 / 1.1, 1.1))
    # twice as many of one source do not change it
    assert interval(([*both, *one],)) == pytest.approx((1 / 1.1, 1.1))


@pytest.mark.parametrize(("what", "least"), [("error", 150), ("memory", 50)])
def test_intervals_hold_what_they_say_of_sources_that_were_left_out(what: str, least: int) -> None:
    """Of times as they are stated; of peaks, which come without, as they would be."""
    known = [one for one in compared() if one.role == "check" and getattr(one, what) is not None]
    runs = [one._replace(error=getattr(one, what)) for one in known]
    held = []
    for source in {one.publication for one in runs}:
        others = [one for one in runs if one.publication != source]
        for one in (one for one in runs if one.publication == source):
            low, high = interval(pools(one.machine, one.kind, one.dtype, others))
            held.append(low <= 1 / (1 + one.error) <= high)
    assert len(held) > least
    assert 0.7 <= sum(held) / len(held) <= 0.9


def test_what_is_far_off_is_warned_of() -> None:
    far = _doubt("llama3-8b", "gb200", devices=8)
    assert far.error is not None
    assert far.error > POOR
    text = caution(far.error, far.bias)
    assert text is not None
    assert f"{far.error:.0%} off in the median" in text
    assert "too short" in text
    near = _doubt("llama3-8b", "b200", devices=8, tp=8)
    assert caution(near.error, near.bias) is None
    assert caution(None, None) is None
    found = evaluate("llama3-8b", "gb200", 8, 4096, microbatches=8, memory_limit="1TiB")
    assert text in found.advice.doubts(found.row)
    # an exchange of tokens that no compared run has
    hidden = evaluate("qwen3-30b-a3b", "b200", 8, 4096, microbatches=8, ep=8, exchange="overlapped")
    assert "overlapped exchange" in hidden.advice.doubt(hidden.row).unmeasured


def test_runs_with_hidden_collectives_judge_no_exposed_ones() -> None:
    options = {"devices": 32, "tp": 4, "dtype": "fp8"}
    assert _doubt("llama3-70b", "h100", **options).unmeasured == ("exposed tensor parallelism",)
    hidden = _doubt("llama3-70b", "h100", overlap=("grad-reduce", "tp-comm"), **options)
    assert hidden.error is not None
    assert hidden.error < 0.15


def test_rates_of_ones_own_are_not_those_that_were_compared() -> None:
    machine = load_machine("h100")
    mine = machine.with_rates(replace(machine.rates, gemm=0.5))
    model = load_model("llama3-8b")
    answer = doubt(model, mine, Layout(8), Work(1, 4096))
    assert answer.error is None
    assert "no published run on h100-sxm was compared" in answer.basis
    fitted = machine.with_rates(machine.rates.fit("my runs", gemm=0.6))
    assert "rates fitted to my runs" in doubt(model, fitted, Layout(8), Work(1, 4096)).basis


def test_profiles_carry_their_doubt() -> None:
    hidden = ("tp-comm",)
    profile = estimate("llama3-70b", "h100", 32, tp=4, chunks=5, dtype="fp8", overlap=hidden)
    answer = profile.meta["doubt"]
    assert answer["error"] == pytest.approx(
        doubt(
            load_model("llama3-70b"),
            load_machine("h100"),
            Layout(32, 4),
            Work(1, 4096, 4, dtype="fp8", overlap=hidden),
        ).error
    )
    assert answer["runs"] >= 3


def test_plausibility_names_the_best_run() -> None:
    h100 = load_machine("h100")
    best = best_published(h100, "dense", "bf16")
    assert best is not None
    assert 0.4 < best.mfu_causal < 0.5
    assert plausibility(h100, "dense", "bf16", best.mfu_causal)[0] is True
    flagged, text = plausibility(h100, "dense", "bf16", best.mfu_causal + 0.01)
    assert flagged is False
    assert best.source in text
    assert plausibility(load_machine("mi300x"), "dense", "bf16", 0.9)[0] is None
    # the same chip with more memory is held against the same runs
    assert best_published(load_machine("h200"), "dense", "bf16") == best


def test_mfu_counts_all_scores_or_their_causal_half() -> None:
    profile = estimate("llama3-8b", "h100", 8, seq=8192)
    model = load_model("llama3-8b")
    scores = 3 * 2 * 2 * 8192**2 * model.heads * model.head_dim * model.layers
    once = profile.meta["iteration"]
    assert once["flops_per_microbatch"] - once["flops_per_microbatch_causal"] == scores // 2
    assert mfu(profile, 1e9, 4, causal=True) < mfu(profile, 1e9, 4)
    # Megatron-Bridge prints 51.5 GFLOP per token for this model and length
    assert once["flops_per_microbatch_causal"] / 8192 == pytest.approx(744e12 / 14451, rel=0.01)
    # no bubble, no waiting: a device busy all the time
    assert 0 < mfu_ceiling(profile, causal=True) < mfu_ceiling(profile) < 1


# -- what the comparison found missing ------------------------------------------------------------


def test_tokens_for_experts_cross_the_network_only_to_other_nodes() -> None:
    machine = load_machine("h100")
    rates = machine.rates
    far = machine.network_gb_per_s * 1e9 * rates.network_collective
    near = machine.link_gb_per_s * 1e9 * rates.all_to_all
    size = 10**9
    inside = message_seconds(Message("ep", "F", size), machine, QWEN, Work(1, 4096, ep=8))
    assert inside == pytest.approx(size / near)
    across = message_seconds(Message("ep", "F", size), machine, QWEN, Work(1, 4096, ep=32))
    assert across == pytest.approx(size * 24 / 31 / far)
    wide = message_seconds(
        Message("ep", "F", size), machine, QWEN, Work(1, 4096, ep=16, expert_tp=8)
    )
    assert wide == pytest.approx(size / far)  # one expert per node: all others are elsewhere
    # once per node: 8 of 128 experts, evenly over 4 nodes, lie in 3.6 nodes, 2.7 of them others
    once = Work(1, 4096, ep=32, exchange="per-node")
    sent = message_seconds(Message("ep", "F", size), machine, QWEN, once)
    assert sent / across == pytest.approx(4 * (1 - 0.75**8) / 8)


def test_an_overlapped_exchange_hides_behind_compute() -> None:
    options = {"ep": 32, "dp": 32, "tp": 1}
    times = [
        sum(c.t_f_ns for c in estimate(QWEN, "h100", 8, exchange=how, **options).stages)
        for how in ("plain", "overlapped", "per-node", "per-node-overlapped")
    ]
    assert times[0] > times[1] > times[3]
    assert times[0] > times[2] > times[3]
    with pytest.raises(OptPipeError, match="exchange: expected plain, per-node"):
        estimate(QWEN, "h100", 8, exchange="fast", **options)


def test_replicas_of_one_node_share_what_crosses_the_network() -> None:
    machine = load_machine("h100")
    one = sync_seconds((10**9, 0), Layout(1, dp=64, zero=1), machine)
    apart = sync_seconds((10**9, 0), Layout(8, tp=8, dp=64, zero=1), machine)
    ratio = min(8.0, machine.link_gb_per_s * machine.rates.collective / (50 * 0.8))
    assert sum(apart) / sum(one) == pytest.approx(ratio, rel=1e-6)


def test_few_tokens_per_expert_are_slow_and_every_layer_of_experts_has_its_launches() -> None:
    machine = load_machine("b200")
    few, many = (Gemm("experts in", rows, 7168, 4096, 16) for rows in (128, 8192))
    rate = [g.flops / gemm_seconds(g, "F", machine, "bf16", 2) for g in (few, many)]
    assert rate[0] < 0.6 * rate[1]
    made = estimate("qwen3-30b-a3b", machine, 1, ep=8, dp=8)
    bare = replace(machine, rates=replace(machine.rates, expert_us=0.0))
    less = estimate("qwen3-30b-a3b", bare, 1, ep=8, dp=8)
    spent = [sum(c.t_f_ns + c.t_b_ns for c in p.stages) for p in (made, less)]
    assert spent[0] - spent[1] == pytest.approx(48 * machine.rates.expert_us * 1e3, rel=1e-6)


def test_cuda_graphs_leave_launches_out_and_such_runs_judge_no_others() -> None:
    options = {"ep": 8, "dp": 8, "microbatch": 4, "dtype": "fp8", "exchange": "overlapped"}
    plain, graphs = (
        estimate("qwen3-30b-a3b", "gb200", 1, cuda_graphs=cuda_graphs, **options)
        for cuda_graphs in (False, True)
    )
    spent = [sum(c.t_f_ns + c.t_b_ns for c in p.stages) for p in (plain, graphs)]
    launches = 48 * load_machine("gb200").rates.expert_us * 1e3
    assert spent[0] - spent[1] == pytest.approx(launches, rel=1e-6)
    assert plain.meta["doubt"]["error"] is None
    assert "experts without CUDA graphs" in plain.meta["doubt"]["unmeasured"]
    assert graphs.meta["doubt"]["error"] < 0.15
    asked = evaluate("qwen3-30b-a3b", "gb200", 8, 4096, microbatches=8, cuda_graphs=True, **{
        key: options[key] for key in ("ep", "microbatch", "dtype", "exchange")
    })  # fmt: skip
    found = asked.row.profile.stages[0]
    assert (found.t_f_ns, found.t_b_ns) == (graphs.stages[0].t_f_ns, graphs.stages[0].t_b_ns)
    # entered as the recipes have them, the runs on GB200s are near
    assert _median("gb200", "experts", {"fp8"}) < 0.15


def test_fp8_casts_its_operands_and_leaves_head_and_router_alone() -> None:
    model, work = load_model("qwen3-30b-a3b"), Work(1, 4096, dtype="fp8")
    assert gemm_dtype(Gemm("router", 1, 1, 1), "fp8") == "bf16"
    assert gemm_dtype(Gemm("qkv", 1, 1, 1), "fp8") == "fp8"
    one = layer(model, False, work)
    products = [gemm for gemm in one.gemms if gemm.name != "router"]
    assert cast_bytes(one, "F", "fp8") == sum(6 * g.groups * g.rows * g.inner for g in products)
    assert cast_bytes(one, "F", "bf16") == cast_bytes(one, "W", "fp8") == 0


def test_no_source_in_fp8_on_h100s_is_compared_at_a_share_that_saw_it() -> None:
    fitted = fit_fp8_h100()
    assert fitted[None] == load_machine("h100").rates.gemm_fp8
    data = published("runs")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    mine = [row for row in rows if row["source"] in FP8_SOURCES and row["machine"] == "h100-sxm"]
    assert {row["source"] for row in mine} == set(FP8_SOURCES)
    assert all(row["rates"] == {"gemm_fp8": fitted[row["source"]]} for row in mine)


def test_kernels_explain_the_source_that_is_furthest_off() -> None:
    """Numbers fitted to all other models bring a model's runs from more than a fifth to less than a tenth."""
    h100 = next(row for row in kernels() if row["machine"] == "h100-sxm")
    assert h100["left_out_error"] < 0.1 < 0.2 < h100["error"]
    assert h100["attention_reached"] < h100["attention"] / 2
    shipped = load_machine("h100-sxm-mosaicml").rates
    assert reached("h100-sxm") == {key: getattr(shipped, key) for key in PARTS}
    left_out = published("runs")["sources"]["foundry"]["models_left_out"]
    assert left_out["rates"] == {model: reached("h100-sxm", model) for model in left_out["rates"]}


def test_runs_of_a_source_that_rates_were_fitted_to_judge_no_estimate() -> None:
    """MosaicML's models are left out in turn, the source is not: its runs are named, and give neither an error nor an interval."""
    own = [one for one in compared() if one.machine == "h100-sxm-mosaicml"]
    again = [
        one.run
        for one in checks()
        if one.machine == "h100-sxm" and one.source.startswith("MosaicML")
    ]
    assert [one.run for one in own] == again
    assert median(abs(one.error) for one in own) < 0.08
    assert not [one for one in checks() if one.machine == "h100-sxm-mosaicml"]
    answer = _doubt("llama3-8b", "h100-sxm-mosaicml", devices=1, zero=3, dp=8)
    assert answer.error is None
    assert "the source itself is not left out" in answer.basis
    assert "27 published runs" in answer.basis


def test_a_table_that_was_read_from_an_image_agrees_with_its_other_columns() -> None:
    """Megatron-LM's README also has PFLOP/s of all GPUs, and parameters in each model's name."""
    data = published("runs")
    rows = [row for row in data["rows"] if row["source"] == "readme"]
    together = (19.6, 44.7, 93.9, 176.5, 322.3, 645.9, 997.2, 1457.4, 2825.6)
    for row, pflops in zip(rows, together, strict=True):
        assert row["tflops"] * row["gpus"] / 1000 == pytest.approx(pflops, abs=0.06)
        assert row["gpus"] == 48 * row.get("tp", 1) * row.get("pp", 1)
        name = row["model"]
        size = parameters(load_model({**data["models"][name], "name": name}))
        assert size == pytest.approx(float(name[6:-1]) * 1e9, rel=0.04)


def test_how_much_what_the_readme_does_not_state_matters() -> None:
    """As the source's note has it, in percent: all of a replica's sequences at once, and no chunks."""
    data, machine = published("runs"), load_machine("h100-sxm")
    rows = [{**data["sources"][row["source"]]["options"], **row} for row in data["rows"]]
    rows = [row for row in rows if row["source"] == "readme"]

    def off(some, **changes) -> list[int]:
        found = []
        for row in some:
            one = estimated({**row, **changes}, machine, data)
            measured = measured_ns(row, one.profile, one.microbatches)
            found.append(
                round(100 * iteration_ns(one.profile, one.trace.makespan_ns) / measured - 100)
            )
        return found

    plain, piped = rows[:4], rows[4:]
    assert off(plain) == [-22, -19, 3, 37]
    assert off(plain, microbatch=4) == [-23, -21, -17, -5]
    assert off(piped) == [9, -10, -13, -10, -11]
    assert off(piped, chunks=1) == [9, 0, -1, 5, 1]
    assert off(piped, microbatch=2) == [-7, -15, -15, -10, -10]


@pytest.mark.parametrize(("model", "ep"), [("qwen3-30b-a3b", 8), ("llama3-8b", 1)])
def test_no_machine_is_surer_than_the_one_it_is_based_on(model: str, ep: int) -> None:
    """Nor is any sure of itself by the errors of a trainer alone, where no run on it was compared."""

    def sure(machine: str) -> tuple[float, float]:
        profile = estimate(model=model, machine=machine, devices=4, ep=ep, dp=8, levels=False)
        assert profile.execution_notes["name"] == load_machine(machine).execution
        found = profile.time_interval
        assert found is not None
        if not profile.meta["doubt"]["runs"]:
            common = profile.execution_notes["common"] or 0.0
            assert found[0] < 1 - common <= 1 + common < found[1]
        return found

    for machine in machine_names():
        low, high = sure(machine)
        base = data_file("machines", machine).get("base")
        if base is not None:
            other = sure(base)
            assert (low <= other[0], high >= other[1]) == (True, True), machine


def test_no_time_is_surer_for_offloading() -> None:
    """On B200s no compared run offloaded anything."""
    profile = estimate(model="llama3-8b", machine="b200", devices=4, chunks=2, levels=False)

    def within(schedule: str) -> tuple[float, float]:
        trace = simulate(build(schedule, profile, 16), profile)
        assert (trace.offloaded > 0) is (schedule == "kimi-k2")
        found = trace.iteration_interval_ns
        assert found is not None
        return found[0] / trace.iteration_ns, found[1] / trace.iteration_ns

    (low, high), wider = within("1f1b-i"), within("kimi-k2")
    assert wider[0] <= low < high < wider[1]
    again = doubt(load_model("llama3-8b"), load_machine("b200"), Layout(4), Work(), offloads=True)
    assert again.interval == pytest.approx(wider)


def test_a_replay_has_an_interval_where_no_run_on_its_machine_was_compared(command_line) -> None:
    line = "simulate p.yaml --schedule 1f1b -m 8"
    run = "--model qwen3-30b-a3b --devices 4 --ep 8 --dp 8 --no-levels --save p.yaml"
    intervals = {}
    for machine in ("h100-sxm-megatron", "h100-sxm"):
        told = command_line(f"estimate --machine {machine} {run}").out
        assert "times what is estimated in four of five runs as megatron-lm issues them" in told
        assert ("a machine and a source that were left out" in told) is (machine != "h100-sxm")
        assert "in four of five runs as megatron-lm issues them" in command_line(line).out
        answer = command_line(f"{line} --json").json
        intervals[machine] = [ns / answer["iteration_ns"] for ns in answer["iteration_interval_ns"]]
    (low, high), (other_low, other_high) = intervals.values()
    assert low < other_low < 1 < other_high
    assert high == pytest.approx(other_high)  # of the file that it is based on
