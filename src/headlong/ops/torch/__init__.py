"""The torch backend: the op set on torch tensors, for training and for the CUDA backend."""
