"""Commands that make profiles: estimated, measured, advised."""
