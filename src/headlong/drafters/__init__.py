"""Drafters: who guesses the next tokens of a sequence."""
