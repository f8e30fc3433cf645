"""Experiments of the paper on Path-SGD, one module each."""
