"""mlx-lm's interface: a program written for mlx-lm changes one import."""
