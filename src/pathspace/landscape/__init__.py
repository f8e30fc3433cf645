"""Loss landscapes: the loss on a line or a plane through a model, in path space or weight space."""

from pathspace.landscape.computing import landscape, landscapes
from pathspace.landscape.directions import Towards, Trajectory
from pathspace.landscape.result import Landscape

__all__ = ["Landscape", "Towards", "Trajectory", "landscape", "landscapes"]
