"""Execute linear programs on CPU and GPU: workers, transport, ranks and their processes."""
