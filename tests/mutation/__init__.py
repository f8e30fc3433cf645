"""Do the tests notice mistakes? Mutants of the core, and how many of them the tests kill.

`make mutate N=500 SEED=0`, or in the folder above `python -m mutation --mutants 500 --seed 0`:

1. `mutants` lists all small changes of the sources that mutmut's operators can make; texts of
   errors, docstrings and annotations are left out. A uniform random sample of them is tried.
2. `reach` runs the tests once and notes which lines each of them runs, and how long it takes. That
   is kept in `.mutation/`, by test file, until the file or the sources change.
3. `running` forks a process per mutant, when everything is imported and collected; `transplant`
   puts the mutant in. The tests that run the changed lines follow, one case of each first,
   quickest first, until one fails or `--seconds` of one core are over. Nothing is written to disk.

mutmut itself is not used to run them: it leaves out decorated functions (properties, static
methods of autograd functions, steps without gradients) and everything at module level, and knows
neither samples nor time limits that do not depend on how busy the machine is.

A mutant that survives is looked at: it gets a test, or it cannot be noticed by any and is listed in
`equivalent.toml` with the reason. Mutants have names, `optim/basis:417`, that stay as long as the
source does: `--only optim/basis:417 --tests tests/test_optim_exactness.py` tries one again.
"""
