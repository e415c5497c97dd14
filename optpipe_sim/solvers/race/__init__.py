"""Run engines in parallel processes; keep incumbents, bounds and the cache of solved problems."""
