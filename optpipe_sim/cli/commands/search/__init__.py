"""Commands that search for schedules, and the cache of what they found."""
