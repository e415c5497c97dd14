"""Stages op by op: `stage` runs F, B, W, C, O and R of any modules; `split` takes a backward apart, `stash` offloads
what F saves, `recompute` drops it, `sliced` runs parts of sequences; `current` is what these ask a thread for,
`boundary` what stages hand on. `decoder` has models to try it on, `plan` cuts them, `tokens` is what they learn."""
