"""Experiments of the paper on positively scale-invariant flatness, one module each."""
