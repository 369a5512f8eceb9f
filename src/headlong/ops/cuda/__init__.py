"""The CUDA backend: packed weights, paged blocks and Triton kernels for whole rounds."""
