"""Schedules and proofs from CP-SAT."""
