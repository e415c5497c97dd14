"""Stages of a user's own: a training step of them as a schedule says, their costs, their checkpoints."""
