"""How flat the loss is around a network, in its weights and in its basis-path values."""

from pathspace.flatnesses.balance import PathBalance, path_balance
from pathspace.flatnesses.ball import adaptive_sharpness, ball_flatness
from pathspace.flatnesses.ballbound import BallBound, ball_bound
from pathspace.flatnesses.coordinates import Coordinates
from pathspace.flatnesses.expected import expected_flatness
from pathspace.flatnesses.measure import coordinates, flatness
from pathspace.flatnesses.pacbayes import PacBayes, error_rate, pac_bayes
from pathspace.flatnesses.paths import PathCoordinates
from pathspace.flatnesses.result import Flatness, Spread
from pathspace.flatnesses.trace import trace_flatness
from pathspace.flatnesses.weights import WeightCoordinates

__all__ = [
    "BallBound",
    "Coordinates",
    "Flatness",
    "PacBayes",
    "PathBalance",
    "PathCoordinates",
    "Spread",
    "WeightCoordinates",
    "adaptive_sharpness",
    "ball_bound",
    "ball_flatness",
    "coordinates",
    "error_rate",
    "expected_flatness",
    "flatness",
    "pac_bayes",
    "path_balance",
    "trace_flatness",
]
