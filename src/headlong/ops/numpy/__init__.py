"""The numpy backend: the oracle that others are compared with, and the portable fallback."""
