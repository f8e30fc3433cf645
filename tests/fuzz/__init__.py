"""Random networks of all supported operations, and the laws that hold for every one of them.

`python -m fuzz --nets 1000 --seed 0` in the folder above runs many; `test_fuzz` runs a few.
"""
