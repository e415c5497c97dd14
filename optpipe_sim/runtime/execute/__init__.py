"""Run the program of a rank.

`rank_step` is the part of one rank in a step, and what each step of its program does. Executors decide when and
where: `threads` on a CPU, `streams` on a GPU, `serial` op by op. Messages go over `transport` (gloo, or
loop-back) and `nccl`; `gates` is the loop-back of a GPU. `sweeps` runs ranks one after the other with their
neighbours played back. `launch` starts processes of this machine, a rank each; `task` is what they do.
"""
