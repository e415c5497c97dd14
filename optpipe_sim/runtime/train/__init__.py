"""`optpipe-sim train`: training on ranks of this machine, which switches to better schedules as it runs."""
