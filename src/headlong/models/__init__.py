"""Backbones: one file per architecture, written against the op set."""
