from pathspace.optim.families import GSGD
