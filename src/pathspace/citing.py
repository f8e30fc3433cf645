"""How to cite the library, and the papers whose methods it implements.

The entries are data here because CITATION.cff does not travel with the installed package; a test
holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pathspace.errors import PathspaceError

Style = Literal["bibtex", "text"]

LIBRARY = "pathspace"


@dataclass(frozen=True)
class Work:
    """Something that is cited.

    Attributes:
        kind: the type of BibTeX entry.
        authors: full names; a name in braces is that of a group.
        title: as printed, capitals included.
        where: name of the journal, the proceedings or the collection; "" for software.
        year: of publication; None for software, which is cited by its version.
        arxiv: number of the preprint.
        about: what the library takes from it.
    """

    kind: Literal["software", "article", "inproceedings"]
    authors: tuple[str, ...]
    title: str
    where: str = ""
    year: int | None = None
    arxiv: str = ""
    about: str = ""


WORKS: dict[str, Work] = {
    LIBRARY: Work(
        "software",
        ("{The pathspace authors}",),
        "pathspace: the positively scale-invariant geometry of ReLU networks",
    ),
    "neyshabur2017": Work(
        "article",
        ("Behnam Neyshabur", "Ryota Tomioka", "Ruslan Salakhutdinov", "Nathan Srebro"),
        "Geometry of Optimization and Implicit Regularization in Deep Learning",
        year=2017,
        arxiv="1705.03071",
        about="Rescaling, group norms, path norm, Path-SGD.",
    ),
    "meng2019": Work(
        "inproceedings",
        ("Qi Meng", "Shuxin Zheng", "Huishuai Zhang", "Wei Chen", "Zhi-Ming Ma", "Tie-Yan Liu"),
        "G-SGD: Optimizing ReLU Neural Networks in its Positively Scale-Invariant Space",
        "International Conference on Learning Representations (ICLR)",
        2019,
        "1802.03713",
        "The scaling group, the skeleton method, basis paths, G-SGD.",
    ),
    "zheng2019": Work(
        "inproceedings",
        ("Shuxin Zheng", "Qi Meng", "Huishuai Zhang", "Wei Chen", "Nenghai Yu", "Tie-Yan Liu"),
        "Capacity Control of ReLU Neural Networks by Basis-path Norm",
        "AAAI Conference on Artificial Intelligence",
        2019,
        "1809.07122",
        "Basis-path norm, its generalization bound, basis-path regularization.",
    ),
    "yi2019": Work(
        "article",
        ("Mingyang Yi", "Qi Meng", "Wei Chen", "Zhi-Ming Ma", "Tie-Yan Liu"),
        "Positively Scale-Invariant Flatness of ReLU Neural Networks",
        year=2019,
        arxiv="1903.02237",
        about="PSI-flatness, its PAC-Bayes bound, loss landscapes in basis-path space.",
    ),
}


class UnknownCitation(PathspaceError, KeyError):
    """There is no entry of that name."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


def citation(*keys: str, style: Style = "bibtex") -> str:
    """The citation of the library, or of the papers that it builds on.

    Args:
        keys: ``"pathspace"``, which is the default, and the papers under the names that
            ``pathspace reproduce`` has for them: ``"neyshabur2017"``, ``"meng2019"``,
            ``"zheng2019"`` and ``"yi2019"``.
        style: BibTeX entries, or lines of text.

    Returns:
        the entries, with an empty line between them.

    Raises:
        UnknownCitation: there is no such key; the message has those that exist.

    Example:
        >>> print(citation("meng2019"))
        @inproceedings{meng2019,
          author = {Qi Meng and Shuxin Zheng and Huishuai Zhang and Wei Chen and Zhi-Ming Ma and
                    Tie-Yan Liu},
          title = {{G-SGD: Optimizing ReLU Neural Networks in its Positively Scale-Invariant
                    Space}},
          booktitle = {International Conference on Learning Representations (ICLR)},
          year = {2019},
          eprint = {1802.03713},
          archiveprefix = {arXiv},
        }
        >>> print(citation("yi2019", style="text"))
        Mingyang Yi, Qi Meng, Wei Chen, Zhi-Ming Ma, Tie-Yan Liu (2019): Positively Scale-Invariant
        Flatness of ReLU Neural Networks. arXiv:1903.02237.
    """
    write = {"bibtex": _bibtex, "text": _text}.get(style)
    if write is None:
        raise ValueError(f"style={style!r} should be 'bibtex' or 'text'")
    return "\n\n".join(write(key, _find(key)) for key in keys or (LIBRARY,))


def _find(key: str) -> Work:
    if key not in WORKS:
        raise UnknownCitation(f"no citation {key!r}; there are: {', '.join(WORKS)}")
    return WORKS[key]


def _bibtex(key: str, work: Work) -> str:
    place = {"article": "journal", "inproceedings": "booktitle"}.get(work.kind, "")
    where = work.where or (f"arXiv preprint arXiv:{work.arxiv}" if work.arxiv else "")
    fields = {
        "author": " and ".join(work.authors),
        "title": f"{{{work.title}}}",  # a second pair of braces keeps the capitals
        place: where,
        "year": str(work.year or ""),
        "version": "" if work.year else _version(),
        "eprint": work.arxiv,
        "archiveprefix": "arXiv" if work.arxiv else "",
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{work.kind}{{{key},", *lines, "}"])


def _text(key: str, work: Work) -> str:
    authors = ", ".join(work.authors).strip("{}")
    when = work.year or f"version {_version()}"
    parts = (work.title, work.where, work.arxiv and f"arXiv:{work.arxiv}")
    return f"{authors} ({when}): " + " ".join(f"{part}." for part in parts if part)


def _version() -> str:
    from pathspace import __version__  # the package imports this module first

    return __version__
