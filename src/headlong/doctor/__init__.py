"""The doctor: checks that a model's head works, is exact, and pays on this machine."""
