"""A plan as a script to run: under Slurm, or node by node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...errors import OptPipeError
from ...profile import CostProfile
from ..parts import said
from .options import Plan, words

_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --gpus-per-node={each} --exclusive
{comments}
# In the folder of Megatron-LM: sbatch SCRIPT OPTION..., or on each of its nodes: MASTER_ADDR=host bash SCRIPT OPTION...
# OPTION...: what is yours, as in --mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4 --log-throughput
set -eu
{exports}options=(
{options}
)
[ -z "${{SLURM_JOB_ID:-}}" ] || first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
${{SLURM_JOB_ID:+srun}} torchrun --nnodes {nodes} --nproc-per-node {each} --rdzv-backend c10d \\
  --rdzv-endpoint "${{MASTER_ADDR:-${{first:-localhost}}}}:${{MASTER_PORT:-29500}}" pretrain_gpt.py "${{options[@]}}" "$@"
"""


def script(plan: Plan, profile: CostProfile, comments: Sequence[str]) -> str:
    """Return a bash script that starts a plan with torchrun on all nodes; `comments` begin it.

    Raises:
        OptPipeError: for a profile that does not say its GPUs, or its model, and a plan that needs more than options.
    """
    if fields := plan.fields():
        raise OptPipeError(
            f"no script can start this plan: {', '.join(fields)} has no option, and pretrain_gpt.py no forward step or data for it"
        )
    parallel, machine = said(profile, "parallel"), said(profile, "machine")
    if not parallel or not machine or not plan.model:
        raise OptPipeError(
            "a script needs the model and the machine; estimate, evaluate and advise write them into profiles"
        )
    gpus = parallel["devices"] * parallel["dp"]
    each = min(gpus, machine.get("devices_per_host") or machine.get("devices_per_node") or 8)
    if gpus % each:
        raise OptPipeError(f"{gpus} GPUs are not whole nodes of {each}")
    lines: list[str] = []
    for word in words(plan.options()):
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    exports = [
        f"export {name}={shlex.quote(value)}\n" for name, value in plan.environment().items()
    ]
    return _SCRIPT.format(
        nodes=gpus // each,
        each=each,
        comments="\n".join(f"# {line}" for line in comments),
        exports="".join(exports),
        options="\n".join(f"  {line}" for line in lines),
    )
