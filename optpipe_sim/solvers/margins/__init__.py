"""Safety margins: plans that still hold if copies, ops or memory turn out larger than profiled."""
