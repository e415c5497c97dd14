"""Plans in Megatron-LM: its options, their constraints, and how it then behaves."""
