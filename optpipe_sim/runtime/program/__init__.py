"""The linear program of each rank: ops with their engines and waits, in issue order."""
