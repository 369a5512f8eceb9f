"""Training: from a backbone and prompts to a head that drafts for it. Needs torch."""
