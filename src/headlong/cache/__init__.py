"""Caches of one sequence: what a pass appends, a round commits or truncates."""
