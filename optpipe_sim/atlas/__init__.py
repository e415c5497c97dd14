"""The atlas: an open library of instances, each with the best schedule and the best bound that are known.

An *instance* is a profile as it is cut (its chunks and its placement), a number of microbatches and a
memory limit per device; sought is a schedule of least makespan, and a proof that there is none faster.
`instances` reads the library, `verify` checks it with the checker alone, `proofs` computes bounds again,
`records` accepts what is better.
"""
