"""A user's own stages: a training step of them as a schedule says (`PipelineStep`), checked beforehand,
and their costs."""
