"""Small files in the official formats, and a server on loopback that hands them out."""

import gzip
import hashlib
import http.server
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import scipy.io
import torch
from torch import Tensor

from pathspace.experiments.data import SOURCES, File, Source

COUNTS = {"train": 12, "test": 5}


def samples(shape: tuple[int, ...], classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random images and labels; every class up to the count occurs."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.arange(shape[0]) * 7 % classes
    return images, labels


def idx(array: Tensor) -> bytes:
    header = bytes([0, 0, 8, array.dim()])
    header += b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + bytes(array.flatten().tolist()))


def cifar(images: Tensor, labels: Tensor, *, coarse: bool = False) -> bytes:
    records = b""
    for image, label in zip(images, labels, strict=True):
        records += bytes([3] * coarse + [int(label)]) + bytes(image.flatten().tolist())
    return records


def svhn(images: Tensor, labels: Tensor, path: Path, *, compressed: bool = True) -> bytes:
    ten = torch.where(labels == 0, 10, labels)
    arrays = {"X": images.permute(2, 3, 1, 0).numpy(), "y": ten[:, None].numpy().astype("uint8")}
    scipy.io.savemat(path, arrays, do_compression=compressed)
    return path.read_bytes()


def official(name: str, contents: Mapping[str, bytes], **changes: Any) -> Source:
    """The entry of a data set as if these small files were the official ones."""
    entry = SOURCES[name]
    files = tuple(replace(described(f.name, contents[f.name]), rows=f.rows) for f in entry.files)
    return replace(entry, files=files, **changes)


def described(name: str, content: bytes) -> File:
    inside = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else None
    unpacked = "" if inside is None else hashlib.sha256(inside).hexdigest()
    return File(name, len(content), hashlib.sha256(content).hexdigest(), unpacked=unpacked)


def packed_anew(content: bytes) -> bytes:
    """The same content in another gzip file: with a name, where those of :func:`idx` have none."""
    buffer = io.BytesIO()
    with gzip.GzipFile("named", "wb", fileobj=buffer) as stream:
        stream.write(gzip.decompress(content))
    return buffer.getvalue()


class Server:
    """Files by path, and the paths that were asked for."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.missing_bytes = 0  # announced, but not sent
        self.url = ""


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port of this machine, for as long as this lasts."""
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.contents.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) + state.missing_bytes))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
