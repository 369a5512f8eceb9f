"""The native backend: compiled CPU kernels (csrc/)."""
