"""Commands that run schedules on real devices."""
