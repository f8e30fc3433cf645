"""Experiments of the paper on the basis-path norm, one module each."""
