"""AdaOffload (arXiv 2510.05186): the greedy schedule, its compiled event loop and its state."""
