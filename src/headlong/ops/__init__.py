"""The op set and the backends that implement it."""
