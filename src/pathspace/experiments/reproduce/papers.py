"""The papers whose tables and figures are reproduced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper, as it is cited."""

    authors: str
    year: int
    title: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}): {self.title}"


PAPERS: dict[str, Paper] = {
    "neyshabur2017": Paper(
        "Neyshabur, Tomioka, Salakhutdinov, Srebro",
        2017,
        "Geometry of Optimization and Implicit Regularization in Deep Learning",
    ),
    "meng2019": Paper(
        "Meng, Zheng, Zhang, Chen, Ma, Liu",
        2019,
        "G-SGD: Optimizing ReLU Neural Networks in its Positively Scale-Invariant Space",
    ),
    "zheng2019": Paper(
        "Zheng, Meng, Zhang, Chen, Yu, Liu",
        2019,
        "Capacity Control of ReLU Neural Networks by Basis-path Norm",
    ),
    "yi2019": Paper(
        "Yi, Meng, Chen, Ma, Liu",
        2019,
        "Positively Scale-Invariant Flatness of ReLU Neural Networks",
    ),
}
