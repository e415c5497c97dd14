"""The checker: judges schedules and traces without the simulator or the solvers."""
