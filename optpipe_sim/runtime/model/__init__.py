"""Stages op by op: `stage` runs F, B, W, O and R of any modules; `split` takes a backward apart, `stash`
offloads what F saves, `recompute` drops it, `sliced` and `cut` run parts of sequences. `models` and
`blocks` are decoders to try it on."""
