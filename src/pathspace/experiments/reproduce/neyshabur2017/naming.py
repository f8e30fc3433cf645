"""Data sets as the paper calls them, and how their inputs are scaled."""

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}

STANDARDIZED = (
    "The paper does not say how inputs are scaled; here each channel has mean 0 and standard "
    "deviation 1 over the training images. That was chosen after looking at small trials."
)


def setting_name(data: str, dropout: float) -> str:
    """A data set, and whether units are dropped.

    Example:
        >>> setting_name("mnist", 0.5)
        'MNIST with dropout'
    """
    return f"{NAMES[data]} with dropout" if dropout else NAMES[data]
