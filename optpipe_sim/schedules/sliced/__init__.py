"""Schedules over slices of the sequence: a microbatch passes the pipeline slice by slice."""
