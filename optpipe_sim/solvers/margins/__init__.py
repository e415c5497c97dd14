"""Safety margins: plans that hold where copies, ops or memory turn out larger than profiled."""
