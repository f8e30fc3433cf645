"""How flat the loss is around a network, in its weights and in its basis-path values."""

from pathspace.flatness.balance import PathBalance, path_balance
from pathspace.flatness.ball import adaptive_sharpness, ball_flatness
from pathspace.flatness.ballbound import BallBound, ball_bound
from pathspace.flatness.coordinates import Coordinates
from pathspace.flatness.expected import expected_flatness
from pathspace.flatness.measure import coordinates, flatness
from pathspace.flatness.pacbayes import PacBayes, error_rate, pac_bayes
from pathspace.flatness.paths import PathCoordinates
from pathspace.flatness.result import Flatness, Spread
from pathspace.flatness.trace import trace_flatness
from pathspace.flatness.weights import WeightCoordinates

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
