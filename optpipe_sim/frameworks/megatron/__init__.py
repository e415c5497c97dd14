"""What Megatron-LM can be told of a plan: options, their constraints, and how it then behaves."""
