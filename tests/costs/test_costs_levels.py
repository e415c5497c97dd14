"""Levels of recomputation from a model's shapes, against the formulas of Korthikanti et al."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optpipe_sim.costs import estimate
from optpipe_sim.costs.layer import layer
from optpipe_sim.costs.machine_files import load_machine
from optpipe_sim.costs.model_files import load_model
from optpipe_sim.costs.recompute.levels import parts_of
from optpipe_sim.costs.work import Work
from optpipe_sim.errors import OptPipeError


def test_selective_recomputation_drops_the_scores() -> None:
    """arXiv 2205.05198, section 5: 5 a s^2 b of the 34 s b h + 5 a s^2 b bytes of a layer."""
    model, machine = load_model("gpt-6.2b"), load_machine("a100-80gb")
    work = Work(microbatch=2, seq=2048, flash=False)
    one = layer(model, True, work)
    a, s, b, h = model.heads, 2048, 2, model.hidden
    assert one.kept_bytes() == 34 * s * b * h + 5 * a * s * s * b
    parts = parts_of(one, model, machine, work)
    assert parts["attention"].size == 5 * a * s * s * b
    # nothing is dropped twice: what stays when all parts are dropped is still to be offloaded
    assert sum(part.size for part in parts.values()) < one.kept_bytes()


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("model", ["llama2-13b", "gpt-6.2b", "qwen3-30b-a3b"])
def test_levels_are_a_chain(model: str, flash: bool) -> None:
    profile = estimate(model, "h100-sxm", 8, seq=4096, levels=True, flash=flash)
    plain = estimate(model, "h100-sxm", 8, seq=4096, levels=False, flash=flash)
    for cost, kept in zip(profile.stages, plain.stages, strict=True):
        assert replace(cost, recompute=()) == kept
        names = [level.name for level in cost.recompute]
        assert names[-1] == "full"
        keeps = [cost.act_bytes, *(level.keep_bytes for level in cost.recompute)]
        times = [0, *(level.t_ns for level in cost.recompute)]
        assert keeps == sorted(keeps, reverse=True)
        assert times == sorted(times)
        full = cost.recompute[-1]
        assert full.t_ns <= cost.t_f_ns
        assert (full.work_bytes or 0) <= cost.act_bytes - full.keep_bytes
        whole = [level.layers for level in cost.recompute if level.name.startswith("full")]
        parts = [level.layers for level in cost.recompute if not level.name.startswith("full")]
        ends = {0, len(profile.stages) - 1}
        outside = sum(profile.stages.index(cost) == end for end in ends)  # embedding or head
        assert whole[-1] == (cost.layers or 0) - outside
        assert set(parts) <= {None}
    # a stage without embedding and head is recomputed in the time of its forward
    middle = profile.stages[3]
    assert middle.recompute[-1].t_ns == pytest.approx(middle.t_f_ns, rel=1e-6)


def test_levels_and_recompute_exclude_one_another() -> None:
    with pytest.raises(OptPipeError, match="levels: give them or recompute=full, not both"):
        estimate("llama2-7b", "h100-sxm", 4, levels=True, recompute="full")
