"""GGUF files written byte by byte, for the ones no honest writer would make."""

from collections.abc import Sequence

UINT32, STRING, ARRAY, FLOAT32 = 4, 8, 9, 6
F32, F16, Q4_0 = 0, 1, 2


def u32(value: int) -> bytes:
    """Write four bytes."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """Write eight bytes."""
    return value.to_bytes(8, "little")


def text(value: str | bytes) -> bytes:
    """Write a string with its length."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def key_value(key: str, value_type: int, payload: bytes) -> bytes:
    """Write one key/value."""
    return text(key) + u32(value_type) + payload


def array(value_type: int, count: int, payload: bytes = b"") -> bytes:
    """Write an array's payload, with whatever count it is told."""
    return u32(value_type) + u64(count) + payload


def tensor_info(name: str, dims: Sequence[int], tensor_type: int = F32, offset: int = 0) -> bytes:
    """Write one tensor's entry; `dims` in GGUF's order, fastest first."""
    sizes = b"".join(u64(size) for size in dims)
    return text(name) + u32(len(dims)) + sizes + u32(tensor_type) + u64(offset)


def gguf_file(
    key_values: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """Put a file together; `counts` (tensors, key/values) may lie."""
    num_tensors, num_key_values = counts or (len(infos), len(key_values))
    head = b"GGUF" + u32(version) + u64(num_tensors) + u64(num_key_values)
    head += b"".join(key_values) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data if infos else head
