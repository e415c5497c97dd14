"""``export`` to frameworks, on the command line."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
import yaml
from megatron_grammar import accept
from pages import Page

from optpipe_sim import Schedule, load_profile
from optpipe_sim.frameworks import advised
from optpipe_sim.units import format_time

STAGE = {
    "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 2,
    "recompute": [{"name": "full", "t_ms": 1, "keep_bytes": 10, "layers": 2}],
}  # fmt: skip
OFFLOADING = {
    "name": "unit", "devices": 4, "stages": STAGE,
    "offload": {"t_offload_ms": 1, "t_reload_ms": 1},
}  # fmt: skip


@pytest.fixture
def cli(command_line):
    """Run a command line in an empty folder that holds o.yaml: 4 devices, levels, copies."""
    Path("o.yaml").write_text(yaml.safe_dump(OFFLOADING))
    return command_line


def test_megatron(cli) -> None:
    complaint = cli("export zb-h1 o.yaml -m 8 --format megatron").complaint
    assert "zb-h1: Megatron-LM cannot express 32 backwards in two. The nearest" in complaint
    assert "1f1b takes 33 ms (before: 27 ms, +22.2%)" in complaint
    assert not Path("zb-h1.megatron.yaml").exists()
    answer = cli("export zb-h1 o.yaml -m 8 --format megatron --nearest --json").json
    assert answer["told"] == "1f1b"
    assert [step["name"] for step in answer["lost"]] == ["split"]
    accept(answer["command"], 8)
    written = yaml.safe_load(Path("zb-h1.megatron.yaml").read_text())
    assert written["options"]["pipeline-model-parallel-layout"] == "Ett|(tt|)*2ttL"
    assert written["command"] == answer["command"]
    assert written["lost"] == answer["lost"]
    line = "export 1f1b-i:recompute=full o.yaml -m 8 --format megatron -o x.yaml"
    answer = cli(line)
    assert (answer.code, "lost" in answer.out) == (0, False)
    assert "--recompute-granularity full --recompute-method uniform" in answer.out
    accept(next(text for text in answer.out.splitlines() if text.startswith("--")), 8)
    line = "export megatron-offload o.yaml -m 8 --format megatron -o x.yaml --json"
    answer = cli(f"{line} --offload-modules mlp_norm,expert_fc1").json
    assert answer["environment"] == {"NVTE_CPU_OFFLOAD_V1": "1"}
    assert "--offload-modules mlp_norm expert_fc1 " in answer["command"]


def test_the_line_to_paste_comes_with_its_variables_and_the_time_of_an_iteration(cli) -> None:
    model = "--model llama3-8b --machine h100 --devices 8 --tp 2"
    cli(f"estimate {model} --save p.yaml")
    variable = "CUDA_DEVICE_MAX_CONNECTIONS=1"  # else Megatron-LM does not start on H100s
    lines = cli("export 1f1b p.yaml -m 8 --format megatron -o x.yaml").out.splitlines()
    assert lines[0].split()[:2] == ["environment", f"{variable}:"]
    assert lines[1].startswith("--tensor-model-parallel-size 2")
    assert variable in cli("solve p.yaml -m 8 --family megatron --time-limit 1").out
    advised = "--gpus 8 --tp 2 --pp 4 --global-batch 8 --seq 4096 --microbatch 1"
    call = f"advise --model llama3-8b --machine h100 {advised} --family megatron --time-limit 1"
    assert variable in cli(call).out
    # as all commands say it, gradients and update included
    times = [
        cli(f"simulate p.yaml --schedule {name} -m 8 --json").json for name in ("1f1b", "zb-h1")
    ]
    whole = [format_time(one["iteration_ns"]) for one in times]
    complaint = cli("export zb-h1 p.yaml -m 8 --format megatron").complaint
    assert f"1f1b takes {whole[0]} (before: {whole[1]}" in complaint
    complaint = cli("export zb-h1:recompute=full p.yaml -m 8 --format torch-csv").complaint
    assert f"an iteration takes {whole[1]} (before: " in complaint


def test_torchtitan(cli) -> None:
    assert "give --csv FILE" in cli("export zb-v o.yaml -m 8 --format torchtitan").complaint
    answer = cli("export zb-v o.yaml -m 8 --format torchtitan --csv v.csv --json").json
    assert answer["files"] == ["zb-v.torchtitan.yaml", "v.csv"]
    words = shlex.split(answer["command"])
    assert words[words.index("--parallelism.pipeline_parallel_schedule") + 1] == "ZBVZeroBubble"
    cli("export zb-v o.yaml -m 8 --format torch-csv -o same.csv")
    assert Path("v.csv").read_text() == Path("same.csv").read_text()


def test_torchs_csv_is_read_wherever_a_schedule_is(cli) -> None:
    cli("export zb-v o.yaml -m 8 --format torch-csv -o v.csv")
    named = cli("simulate o.yaml --schedule zb-v -m 8 --json").json
    read = cli("simulate o.yaml --schedule v.csv --json").json
    for key in ("makespan_ns", "peak_bytes", "chunks"):
        assert read[key] == named[key]
    assert cli("check v.csv o.yaml --json").json["valid"]
    assert cli("explain v.csv o.yaml --json").code == 0
    row = cli("compare o.yaml -m 8 --schedules v.csv --json").json["rows"][0]
    assert row["makespan_ns"] == named["makespan_ns"]
    cli("export v.csv --format torch-csv -o again.csv")
    assert Path("again.csv").read_text() == Path("v.csv").read_text()
    rows = Path("v.csv").read_text().splitlines()
    Path("short.csv").write_text("\n".join([rows[0].rpartition(",")[0], *rows[1:]]))
    answer = cli("check short.csv o.yaml")
    assert answer.code == 1
    assert "is missing" in answer.out
    Path("odd.csv").write_text("0F0,0X0\n")
    assert "odd.csv: rank 0: '0X0' is not an action" in cli("check odd.csv o.yaml").complaint


def test_te(cli) -> None:
    complaint = cli("export po-h o.yaml -m 8 --format te").complaint
    assert "TransformerEngine cannot express copies in both directions at once" in complaint
    answer = cli("export po-h o.yaml -m 8 --format te --nearest")
    assert "lost                copies in both directions at once: +" in answer.out
    ranks = yaml.safe_load(Path("po-h.te.yaml").read_text())["ranks"]
    assert [one["rank"] for one in ranks] == [0, 1, 2, 3]
    assert any("start_offload_layer" in text for text in ranks[0]["program"])


def test_modules_of_each_part(cli) -> None:
    cli("export zb-h1 o.yaml -m 4 --format torch-csv -o s.csv --parts parts.json")
    parts = json.loads(Path("parts.json").read_text())
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1"]
    assert parts[3] == ["layers.6", "layers.7", "norm", "lm_head"]
    cli("export zb-h1 o.yaml -m 4 --format torch-csv -o s.csv --parts p2.json --layers 1,3,3,1")
    assert json.loads(Path("p2.json").read_text())[3] == ["layers.7", "norm", "lm_head"]


@pytest.mark.parametrize(
    ("line", "problem"),
    {
        "export 1f1b -m 4 --format megatron": "megatron needs the profile as well",
        "export po-h o.yaml -m 8 --format megatron --without-offloads": "--without-offloads: is"
        " nothing for --format megatron; --nearest exports what can be said",
        "export 1f1b o.yaml -m 4 --format torch-csv --nearest": "--nearest: is nothing for",
        "export 1f1b o.yaml -m 4 --format megatron --csv x.csv": "--csv: is nothing for",
        "export 1f1b o.yaml -m 4 --format torch-csv --script x.sh": "--script: is nothing for",
        "export 1f1b o.yaml -m 4 --format megatron --script x.sh": "needs the model and the machine",
        "advise --model llama2-7b --machine a100 --gpus 8 --seq 4096 --global-batch 8 --scripts x": "--scripts: start Megatron-LM; give --family megatron",
        "export 1f1b o.yaml -m 4 --format perfetto --parts x.json": "--parts: is nothing for",
        "export 1f1b o.yaml -m 4 --format perfetto --layers 1,2": "--layers: is nothing for",
        "export 1f1b o.yaml -m 4 --format megatron --layers 1,2": "layers: expected 4 numbers",
        "export 1f1b o.yaml -m 4 --format megatron --layers a": "expected whole numbers",
        "export megatron-offload o.yaml -m 4 --format megatron --offload-modules x": "'x' is not one of",
        "export 1f1b o.yaml -m 4 --format te --offload-modules x": "--offload-modules: is nothing",
    }.items(),
)
def test_what_is_refused_is_one_line(cli, line: str, problem: str) -> None:
    answer = cli(line)
    assert (answer.code, answer.complaint.count("\n") <= 1) == (2, True)
    assert problem in answer.complaint


def test_the_page_shows_what_is_printed(cli) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "frameworks.md").read_text()
    profile = root / "experiments" / "profiles" / "zb-1.5b-p8-m24.yaml"
    answer = cli(f"export zb-h1 {profile} -m 24 --format megatron --nearest -o x.yaml")
    command = next(line for line in answer.out.splitlines() if line.startswith("--"))
    assert command in page
    assert "1f1b takes 1.457 s (before: 1.31 s" in answer.out
    assert "1F1B takes 1.457 s instead of 1.31 s" in page


# -- import ---------------------------------------------------------------------------------------


def test_import_of_a_config(cli) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100,
              "num_attention_heads": 4, "intermediate_size": 96, "mlp_bias": True}  # fmt: skip
    Path("config.json").write_text(json.dumps(config))
    answer = cli("import config.json --from hf-config --name mine --save m.yaml --json").json
    assert answer["model"]["name"] == "mine"
    assert answer["unread"] == ["mlp_bias: biases of the MLP are left out"]
    assert yaml.safe_load(Path("m.yaml").read_text()) == answer["model"]
    assert cli("estimate --model m.yaml --machine h100-sxm --devices 2 --json").code == 0
    text = cli("import config.json --from hf-config").out
    assert "not read            mlp_bias: biases" in text


def test_import_of_traces(cli) -> None:
    for rank in range(2):
        step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 1000}
        first = [("F0.0", 0), ("BW0.0", 3100)] if rank == 0 else [("F1.0", 1050), ("BW1.0", 2050)]
        events = [{**step, "name": name, "ts": ts} for name, ts in first]
        Path(f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    line = "import rank0.json rank1.json --from torch-trace --save P.yaml --save-trace T.json"
    answer = cli(f"{line} --json").json
    assert (answer["makespan_ns"], answer["iterations_ns"]) == (4_100_000, [4_100_000])
    assert answer["idle_by_device_ns"][1] == {
        "fill": 1_050_000, "waiting": 0, "transfer": 0, "host": 0, "drain": 1_050_000,
    }  # fmt: skip
    assert "rank 1 idle         fill 1.05 ms, drain 1.05 ms" in cli(line).out
    assert cli("explain T.json P.yaml").code == 0
    assert cli("simulate P.yaml --schedule 1f1b -m 1 --json").code == 0
    assert cli("report T.json P.yaml --against 1f1b -o r.html").code == 0
    # the backward of rank 0 is late for a reason that no profile has
    events = [{**step, "name": name, "ts": ts} for name, ts in (("F0.0", 0), ("BW0.0", 3300))]
    Path("rank0.json").write_text(json.dumps({"traceEvents": events}))
    assert cli(line).code == 0
    assert cli("report 1f1b P.yaml -m 1 --against T.json -o r.html").code == 0
    page = Page(Path("r.html").read_text())
    assert "1f1b, predicted against measured" in page.text
    assert float(page.rows("measured")[-1][1][1]) == float(page.rows("difference")[-1][3][1])


def test_what_import_refuses(cli) -> None:
    Path("x.log").write_text("nothing")
    for line, problem in {
        "import x.log --from megatron-log": "x.log: no timer forward-compute",
        "import x.log x.log --from megatron-log": "megatron-log takes one, got 2",
        "import x.log --from megatron-log --save-trace T.json": "megatron-log does not say when ops began",
        "import x.log --from torch-trace": "x.log: is not JSON",
        "import none.json --from hf-config": "none.json: no such file",
        "import o.yaml --from torch-trace --save o.yaml": "--save o.yaml: is the other file",
        "import o.yaml --from elsewhere": "invalid choice: 'elsewhere'",
    }.items():
        answer = cli(line)
        assert (answer.code, problem in answer.complaint) == (2, True), answer.complaint


# -- solve --family -------------------------------------------------------------------------------


def test_the_best_of_a_family_beside_the_best(cli) -> None:
    line = (
        "solve o.yaml -m 8 --memory-limit 330B --family megatron --engine adaoffload --time-limit 5"
    )
    answer = cli(f"{line} --save f.json --json").json
    accept(answer["command"], 8)
    assert answer["schedule"] == answer["told"]
    assert answer["lower_bound_ns"] <= answer["objective_ns"]
    assert answer["gap"] == pytest.approx(answer["objective_ns"] / answer["lower_bound_ns"] - 1)
    ratio = answer["objective_ns"] / answer["free_ns"] - 1
    assert answer["slower_than_free"] == pytest.approx(ratio)
    assert max(answer["peak_bytes"]) <= 330
    again = cli("simulate o.yaml --schedule f.json --memory-limit 330B --json").json
    assert again["makespan_ns"] == answer["makespan_ns"]
    # what is exported is what was solved for
    exported = cli("export f.json o.yaml --memory-limit 330B --format megatron --json").json
    assert (exported["lost"], exported["command"]) == ([], answer["command"])
    complaint = cli(f"{line} --noise 10%").complaint
    assert "--noise: is nothing for --family" in complaint


def test_the_best_of_torchtitan_beside_the_best(cli) -> None:
    line = "solve o.yaml -m 4 --memory-limit 350B --family torchtitan --engine adaoffload"
    answer = cli(f"{line} --time-limit 2 --save f.json --json").json
    assert answer["lower_bound_ns"] <= answer["free_ns"] <= answer["objective_ns"]
    assert max(answer["peak_bytes"]) <= 350
    assert answer["offloaded"] == 0
    options = answer["options"]
    assert options["activation_checkpoint"] in ("none", "full")
    schedule = Schedule.load("f.json")
    levels = set(schedule.recompute.values())
    assert levels == ({"full"} if options["activation_checkpoint"] == "full" else set())
    assert len(options["parallelism"]["module_fqns_per_model_part"]) == schedule.shape.stages
    # what is exported is what was solved for
    line = "export f.json o.yaml --memory-limit 350B --format torchtitan --csv order.csv --json"
    exported = cli(line).json
    assert exported["lost"] == []
    checkpoint = exported["options"]["activation_checkpoint"]
    assert checkpoint == options["activation_checkpoint"]
    again = cli("simulate o.yaml --schedule f.json --memory-limit 350B --json").json
    assert again["makespan_ns"] == answer["objective_ns"]


def test_a_family_with_other_layers_keeps_the_profile_of_its_schedule(cli) -> None:
    layer = {"name": "layer", "count": 6, "t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 10}
    ends = [{**layer, "name": name, "count": 1} for name in ("embedding", "head")]
    ends[1] |= {"t_f_ms": 3, "t_b_ms": 3, "t_w_ms": 3}
    data = {"devices": 2, "items": [ends[0], layer, ends[1]]}
    Path("i.yaml").write_text(yaml.safe_dump(data))
    line = "solve i.yaml -m 4 --chunks 1 --family megatron --engine adaoffload --time-limit 2"
    assert "give --save-profile Q.yaml as well" in cli(f"{line} --save s.json").complaint
    answer = cli(f"{line} --save s.json --save-profile q.yaml --json").json
    assert answer["options"]["pipeline-model-parallel-layout"] == "Et*4|ttL"
    assert answer["objective_ns"] < answer["given_ns"]
    assert answer["lower_bound_ns"] <= answer["objective_ns"]
    exported = cli("export s.json q.yaml --format megatron --json").json
    assert (exported["lost"], exported["command"]) == ([], answer["command"])


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_advice_for_a_framework_ends_in_its_options(
    cli, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    monkeypatch.setattr(advised, "FREE_S", 0.5)
    line = "advise --model qwen3-0.6b --machine h100 --gpus 2 --global-batch 4 --seq 2048 --pp 2"
    line += (
        f" --microbatch 1 --chunks 1 --recompute none --time-limit 3 --family {framework} --json"
    )
    if framework == "megatron":
        line += " --scripts runs --save-profile a.yaml --save a.json"
    answer = cli(line).json
    if framework == "torchtitan":
        parallelism = answer["options"]["parallelism"]
        assert parallelism["pipeline_parallel_degree"] == 2
        assert len(parallelism["module_fqns_per_model_part"]) == 2
        return
    read = accept(answer["command"], 4)
    assert (read.num_layers, read.pipeline_model_parallel_size) == (28, 2)
    assert (read.hidden_size, read.kv_channels, read.rotary_base) == (1024, 128, 10000)
    scripts = sorted(Path("runs").iterdir())
    assert [str(path) for path in scripts] == [f for f in answer["files"] if f.endswith(".sh")]
    assert scripts[0].name == "1-pp-2-tp-1-dp-1.sh"
    assert "--hidden-size 1024\n" in scripts[0].read_text()
    line = "export a.json a.yaml --format megatron -o a.megatron.yaml --script one.sh --json"
    assert cli(line).json["files"] == ["a.megatron.yaml", "one.sh"]
    ours = [text for text in Path("one.sh").read_text().splitlines() if text.startswith("  --")]
    assert ours == [t for t in scripts[0].read_text().splitlines() if t.startswith("  --")]
    assert sum(answer["told_layers"]) == 28
    assert answer["told_iteration_ns"] <= answer["rows"][0]["iteration_ns"]
    assert answer["layout_bound_ns"] <= answer["free_ns"] <= answer["told_iteration_ns"]
    assert answer["layout_bound_by"] == "fill and drain, any layout"


# -- compare and frontier --family ----------------------------------------------------------------


def test_a_comparison_within_a_family(cli) -> None:
    """A row for each kind and number of chunks: its best, which all are, as `solve --family` has it."""
    line = "o.yaml -m 8 --memory-limit 330B --family megatron"
    answer = cli(f"compare {line} --json").json
    rows = answer["rows"]
    kinds = [(row["schedule"].split(":")[0], row["chunks"]) for row in rows]
    assert len(set(kinds)) == len(kinds)
    assert {1, 2} <= {chunks for _, chunks in kinds}
    assert answer["replayed"] > len(rows)
    solved = cli(f"solve {line} --engine adaoffload --time-limit 1 --json").json
    assert rows[0]["fits"]
    assert rows[0]["cost_ns"] == solved["objective_ns"]
    assert all("peaks at" in row["reason"] for row in rows if not row["fits"])
    refused = cli("compare o.yaml -m 8 --family megatron --schedules zb-h1,1f1b --json").json
    assert [row["schedule"] for row in refused["rows"]] == ["1f1b"]
    assert "runs 1F1B and interleaved 1F1B" in refused["refused"]["zb-h1"]
    names = "--schedules po:chunks=1,zb-h1,v-half,1f1b:recompute=full"
    told = cli(f"compare o.yaml -m 8 --family torchtitan {names} --json").json
    assert {row["schedule"] for row in told["rows"]} == {"zb-h1", "v-half", "1f1b:recompute=full"}
    assert "torchtitan cannot express" in told["refused"]["po:chunks=1"]


def test_the_options_of_the_plan_to_run_are_a_command_away(cli) -> None:
    """The answer is of the options of the fastest plan, which moves layers; one with the layers given is the one to run."""
    cli("estimate --model qwen3-8b --machine h100 --devices 4 --tp 2 --save q.yaml")
    told = cli("solve q.yaml -m 8 --family megatron --time-limit 2").out
    command = told.splitlines()[-1].partition(" export ")[2]
    assert command.startswith("1f1b-i:chunks=")
    assert "to run              1f1b-i:chunks=" in told
    assert cli(f"export {command}").code == 0
    # what was asked for is kept
    asked = cli("solve q.yaml -m 8 --family megatron --chunks 2 --time-limit 2").out
    beside = [line for line in asked.splitlines() if line.startswith(("  plainest", "  to run"))]
    assert beside
    assert all("1f1b-i:chunks=2" in line for line in beside)


def test_a_frontier_beside_that_of_a_family(cli) -> None:
    """Under each limit the family's best has the same chunks, so that the bound holds for it."""
    line = "frontier o.yaml -m 8 --limits 120B,330B,700B --engine adaoffload --time-limit 0.4"
    answer = cli(f"{line} --family megatron --csv f.csv --chart f.png --json").json
    points = answer["points"]
    told = [point["family_cost_ns"] for point in points]
    assert told[-1] is not None
    assert told[1:] == sorted(told[1:], reverse=True)
    for point in points:
        if point["family"] is not None:
            assert point["lower_bound_ns"] <= point["family_cost_ns"]
    limit = points[1]["memory_limit_bytes"]
    same = f"compare o.yaml -m 8 --memory-limit {limit}B --family megatron --json"
    one = next(row for row in cli(same).json["rows"] if row["chunks"] == 1)
    assert (one["fits"], one["cost_ns"]) == (True, told[1])
    with Path("f.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["family"] for row in rows] == [point["family"] or "" for point in points]
    shown = cli(f"{line} --family torchtitan")
    assert "× torchtitan: over the best of its family with 1 chunk per device" in shown.out


def test_tensor_parallelism_without_sharing_the_norms(cli) -> None:
    """Without sequence parallelism a device holds the inputs of the norms for all tokens, a message has
    tp times the bytes, and Megatron-LM gets no --sequence-parallel."""
    line = "estimate --model qwen3-0.6b --machine h100 --devices 4 --tp 2 --seq 2048"
    assert cli(f"{line} --save s.yaml").code == 0
    assert cli(f"{line} --no-sequence-parallel --save a.yaml").code == 0
    shared, alone = load_profile("s.yaml"), load_profile("a.yaml")
    assert alone.t_comm_ns > shared.t_comm_ns
    for one, other in zip(alone.stages, shared.stages, strict=True):
        assert one.act_bytes > other.act_bytes
    words = cli("export 1f1b a.yaml -m 4 --format megatron --json").json["options"]
    assert words["tensor-model-parallel-size"] == 2
    assert "sequence-parallel" not in words


def test_what_export_writes_is_what_check_reads(cli) -> None:
    """A plan in Megatron-LM's options names its schedule; torch's orders are CSV files; else it is said."""
    for name in ("1f1b-i", "megatron-offload:chunks=1,fraction=1/2"):
        cli(f"export {name} o.yaml -m 8 --format megatron -o told.yaml --force -q")
        assert cli("check told.yaml o.yaml --json").json["valid"]
        told = cli("simulate o.yaml --schedule told.yaml --json").json
        assert (
            told["makespan_ns"]
            == cli(f"simulate o.yaml --schedule {name} -m 8 --json").json["makespan_ns"]
        )
    for line in (
        "--format torchtitan --csv order.csv -o t.yaml",
        "--format torch-csv -o order.csv --force",
    ):
        cli(f"export 1f1b o.yaml -m 8 {line} -q")
        assert cli("check order.csv o.yaml --json").json["valid"]
    assert "without the order of its ops" in cli("check t.yaml o.yaml").complaint


def test_times_for_torchtitan_say_whose_way_to_issue_they_have(cli) -> None:
    line = "solve o.yaml -m 4 --memory-limit 350B --family torchtitan --engine adaoffload"
    told = "no run of torch's pipelines was compared: ops and messages are taken to cost what they do as megatron-lm issues"
    assert any(told in note for note in cli(f"{line} --execution megatron-lm --json").json["notes"])
    assert not any("was compared" in note for note in cli(f"{line} --json").json["notes"])
