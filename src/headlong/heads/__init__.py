"""Heads: small trained parts that predict beyond the next token."""
