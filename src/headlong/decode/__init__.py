"""Decoding: draft, verify, pick, accept, commit; the maths of each in a file of its own."""
