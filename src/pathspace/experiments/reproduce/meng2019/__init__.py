"""Experiments of the paper on G-SGD, one module each."""
