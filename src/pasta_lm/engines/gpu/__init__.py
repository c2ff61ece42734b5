"""Decoding on a GPU: attention over pages in one kernel, passes of fixed shape, CUDA graphs."""
