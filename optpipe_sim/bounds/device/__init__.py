"""Lower bounds from one device at a time: the rest of the pipeline only sets times."""
