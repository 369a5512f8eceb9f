"""Heads and backbones for other engines: checked copies under the keys that each one reads."""
