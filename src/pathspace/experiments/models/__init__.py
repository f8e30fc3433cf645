"""Built-in networks: the papers' own models, and small members of many other families.

A model is an ordinary ``nn.Module`` without base class or marker. Ask for one by name with `build`
(`catalogue` lists the names), or call a builder for what a name cannot say. Builders draw weights
from the ``generator`` they are given and leave torch's global random state alone.

Example:
    >>> import torch
    >>> from pathspace.experiments import models
    >>> model = models.build("plainnet8-thin", torch.Generator().manual_seed(0))
    >>> model(models.example_input("plainnet8-thin", batch=2)).shape
    torch.Size([2, 10])
"""

from pathspace.experiments.models.chains import mlp, ncf, vgg
from pathspace.experiments.models.concatenating import densenet, inception, unet
from pathspace.experiments.models.construction import initialize_
from pathspace.experiments.models.registry import (
    Entry,
    Input,
    build,
    catalogue,
    example_input,
    resolve,
)
from pathspace.experiments.models.residual import resnet
from pathspace.experiments.models.separable import mobilenet, shufflenet

__all__ = [
    "Entry",
    "Input",
    "build",
    "catalogue",
    "densenet",
    "example_input",
    "inception",
    "initialize_",
    "mlp",
    "mobilenet",
    "ncf",
    "resnet",
    "resolve",
    "shufflenet",
    "unet",
    "vgg",
]
