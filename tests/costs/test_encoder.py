"""An encoder in front of a language model: one pipeline of both."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.costs import estimate
from optpipe_sim.costs.encoder import with_encoder
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.parts import parts_of
from optpipe_sim.profile.items import deal_items, layout_words

TOWER: dict[str, Any] = {
    "name": "tower", "style": "gpt", "layers": 24, "hidden": 1024, "heads": 16, "vocab": 1, "head": "none",
    "bidirectional": True,
}  # fmt: skip


def _tower(tp: int = 2, **options: Any) -> CostProfile:
    return estimate(TOWER, "h100", tp, tp=tp, seq=1024, microbatch=8, levels=False, **options)


def _model(**options: Any) -> CostProfile:
    return estimate("llama3-8b", "h100", 8, tp=2, seq=4096, levels=False, **options)


def test_its_layers_add_to_the_first_stage() -> None:
    tower, model = _tower(), _model()
    both = with_encoder(model, tower)
    layers = [item.cost for item in tower.items if item.decoder]
    assert len(layers) == 24
    for key in ("t_f_ns", "t_b_ns", "t_w_ns", "act_bytes"):
        added = getattr(both.stages[0], key) - getattr(model.stages[0], key)
        assert added == pytest.approx(sum(getattr(one, key) for one in layers), abs=40)
        assert added > 0
    for one, other in zip(both.stages[1:], model.stages[1:], strict=True):
        assert one.t_f_ns == pytest.approx(other.t_f_ns, abs=40)
        assert one.static_bytes == other.static_bytes
    first, *rest = model.meta["layers_per_stage"]
    assert both.meta["layers_per_stage"] == [first + 24, *rest]
    flops = [one.meta["iteration"]["flops_per_microbatch"] for one in (both, model, tower)]
    assert flops[0] == flops[1] + flops[2]
    assert both.meta["doubt"]["error"] is None
    # what no run was compared with is no surer than what some were
    for key in ("interval", "interval_offloading"):
        low, high = both.meta["doubt"][key]
        for one in (model, tower):
            assert low <= one.meta["doubt"][key][0] < one.meta["doubt"][key][1] <= high


def test_layouts_give_it_stages_of_its_own_where_that_is_even() -> None:
    both = with_encoder(_model(), _tower())
    dealt = both.with_layout(deal_items(both.items, both.placement))
    before, after = (max(cost.work_ns for cost in one.stages) for one in (both, dealt))
    assert after < before
    words = layout_words(both.items, [25, 11, 11, 11])
    assert words == ["embedding + 24 of the encoder", "11", "11", "10 + head"]
    times = [
        simulate(build("1f1b", one, 8), one, enforce=False).makespan_ns for one in (both, dealt)
    ]
    assert times[1] < times[0]
    assert list(accumulate(cost.layers or 0 for cost in dealt.stages))[-1] == len(both.items)


def test_an_encoder_attends_to_all_tokens() -> None:
    """Twice the scores of a causal kernel, and no half to count."""
    both = [
        estimate({**TOWER, "bidirectional": all_of}, "h100", 1, seq=8192)
        for all_of in (True, False)
    ]
    spent = [one.meta["time_spent"]["attention"] * one.stages[0].work_ns for one in both]
    assert spent[0] == pytest.approx(2 * spent[1], rel=0.1)
    counted = [one.meta["iteration"] for one in both]
    assert counted[0]["flops_per_microbatch_causal"] == counted[0]["flops_per_microbatch"]
    assert counted[1]["flops_per_microbatch_causal"] < counted[0]["flops_per_microbatch"]


def test_what_is_no_encoder_is_refused() -> None:
    with pytest.raises(
        OptPipeError, match=r"encoder: estimated on tp 4, .*the language model on tp 2"
    ):
        with_encoder(_model(), _tower(tp=4))
    with pytest.raises(OptPipeError, match="lacks the costs of its layers"):
        with_encoder(_model(slices=4), _tower())
    with pytest.raises(OptPipeError, match="attends to later tokens"):
        _tower(slices=4)
    with pytest.raises(OptPipeError, match="has an encoder in front"):
        parts_of(with_encoder(_model(), _tower()))
