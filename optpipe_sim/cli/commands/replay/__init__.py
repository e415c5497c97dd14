"""Commands that replay a schedule: its measures, its check, its reasons, its exports."""
