"""Where a search begins: the published schedules with every value of their options, AdaOffload's
settings and waves, and problems with fixed levels of recomputation."""
