"""Loss landscapes: the loss on a line or a plane through a model, in path space or weight space."""

from pathspace.losslandscape.computing import landscape, landscapes
from pathspace.losslandscape.directions import Towards, Trajectory
from pathspace.losslandscape.result import Landscape

__all__ = ["Landscape", "Towards", "Trajectory", "landscape", "landscapes"]
