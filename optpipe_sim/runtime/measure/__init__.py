"""Measure what ops cost: times, bytes, copies, and the machine they ran on."""
