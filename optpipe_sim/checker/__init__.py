"""The checker: validates schedules and traces without the simulator or the solvers."""
