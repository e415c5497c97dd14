"""Run the program of a rank.

`rank_step` is the part of one rank in a step, and what each step of its program does. `run` takes the executor of
its device: `threads` on a CPU, `streams` on a GPU; `serial` goes op by op. Messages go over `transport` (gloo, or a
loop-back for a rank that runs alone) and `nccl`. `launch` starts processes of this machine, a rank each;
`unpipelined` is what a step is compared with.
"""
