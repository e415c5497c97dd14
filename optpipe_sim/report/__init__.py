"""The interactive page: one HTML file that shows why a schedule is slow, and what another does better."""
