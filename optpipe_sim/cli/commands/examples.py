"""Profiles that the examples of the commands use."""

PROFILE = "experiments/profiles/zb-1.5b-p8-m24.yaml"
OFFLOADING = "experiments/profiles/zb-14.6b-p16-m48-offload.yaml"
