"""Measurements: what passes, drafts and whole answers cost on this machine."""
