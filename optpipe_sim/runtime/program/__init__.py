"""From a schedule to the linear program of each rank: steps with their engines and waits, in issue order."""
