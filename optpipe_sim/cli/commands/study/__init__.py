"""Commands of experiments: sweeps and figures."""
