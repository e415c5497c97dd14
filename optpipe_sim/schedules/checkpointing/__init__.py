"""Schedules that choose what is recomputed: a level per stage (AdaPipe), or ops C in idle time (Mario)."""
