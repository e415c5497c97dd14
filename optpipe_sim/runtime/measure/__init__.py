"""Measure a profile: times, bytes and copies of stages, alone and beside each other; and the machine
they ran on."""
