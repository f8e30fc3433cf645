"""PlainNets and ResNets on CIFAR: what several experiments train alike, so that it is done once."""
