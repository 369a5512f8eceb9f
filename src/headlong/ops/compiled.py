"""The compiled kernels, where they are built: `native` exists where `HAS_KERNELS` is true."""

try:
    from headlong.ops import _native as native
except ImportError:
    HAS_KERNELS = False
else:
    HAS_KERNELS = True

__all__ = ["HAS_KERNELS", "native"]
