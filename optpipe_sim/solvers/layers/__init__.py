"""The search for the layers of each stage together with schedule and treatments."""
