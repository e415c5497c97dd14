"""Formats of other tools: Perfetto traces and torch.distributed.pipelining's CSV."""
