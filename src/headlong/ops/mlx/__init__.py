"""The MLX backend: the op set in MLX arrays, for Apple's GPUs."""
