"""A plan in the place of one of torch.distributed.pipelining's schedules."""
