"""Train, and switch to better schedules while training."""
