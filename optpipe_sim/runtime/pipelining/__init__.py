"""Schedules of this project under torch.distributed.pipelining."""
