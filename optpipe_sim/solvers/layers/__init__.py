"""Which layers go on which stage, chosen together with schedule and treatments."""
