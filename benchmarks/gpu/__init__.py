"""The run on a GPU behind confirm_gpu.py: its parts, what each measures, and the page that it writes."""
