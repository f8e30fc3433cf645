"""Data sets as the paper calls them."""

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}


def setting_name(data: str, dropout: float) -> str:
    """A data set, and whether units are dropped.

    Example:
        >>> setting_name("mnist", 0.5)
        'MNIST with dropout'
    """
    return f"{NAMES[data]} with dropout" if dropout else NAMES[data]
