"""Passes in C: what torch's operations give, and nothing where there is no compiler."""

import itertools
import shutil

import pytest
import torch

from natives import needs_compiler, said, torch_only
from pathspace import native
from pathspace.native import Apart, Job, Steps

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SHAPES = [(1, 1), (1, 9), (9, 1), (3, 5), (2, 70001), (70001, 2), (150, 2049), (65, 4097)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
threads = pytest.mark.parametrize("threads", [1, 2, 3], ids="threads{}".format)


@pytest.fixture(autouse=True)
def restored():
    """As many threads as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def close(found, expected, dtype):
    """As close as sums of so many terms in any order are."""
    scale = expected.abs().max() if expected.numel() else 0.0
    tolerance = 3e-5 if dtype == torch.float32 else 1e-13
    assert (found - expected).abs().max() <= tolerance * max(1.0, float(scale))


def entries(shape, seed=0):
    """Some places, none of them twice."""
    generator = torch.Generator().manual_seed(seed)
    size = shape[0] * shape[1]
    places = torch.randperm(size, generator=generator)[: max(1, size // 3)]
    mask = torch.zeros(size, dtype=torch.bool)
    mask[places] = True
    return places, Apart.at(places, shape), mask.view(shape)


@needs_compiler
@dtypes
@shapes
@threads
class TestSums:
    def test_of_powers(self, shape, dtype, threads):
        torch.set_num_threads(threads)
        rows, columns = shape
        w, row, column = (numbers(*s, dtype=dtype) for s in (shape, (columns,), (rows,)))
        _, apart, mask = entries(shape)
        for power, some in itertools.product(native.POWERS, (None, apart)):
            along, across = torch.full_like(column, 7.0), torch.full_like(row, 7.0)
            job = Job(
                w, power=power, row=row, column=column, apart=some, along=along, across=across
            )
            total = native.sums([job])
            f = w.abs().pow(power)
            f = f if some is None else f.masked_fill(mask, 0.0)
            close(along, (f * row).sum(1), dtype)
            close(across, (f * column[:, None]).sum(0), dtype)
            close(torch.tensor(total, dtype=torch.float64), (f * row).sum().double(), dtype)

    def test_of_products(self, shape, dtype, threads):
        torch.set_num_threads(threads)
        rows, columns = shape
        w, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (0, 1))
        along, across, products = w.new_empty(rows), w.new_empty(columns), torch.empty_like(w)
        places, apart, _ = entries(shape)
        values = w.new_empty(len(places))
        both = Job(w, gradient=g, along=along, across=across, picked=(apart, values))
        each = Job(w, gradient=g, products=products)
        for job in (both, each):
            job.fields.sign, job.fields.decay = -1.0, 0.3
        native.sums([both, each])
        expected = 0.3 * w * w - w * g
        close(products, expected, dtype)
        close(along, expected.sum(1), dtype)
        close(across, expected.sum(0), dtype)
        close(values, expected.view(-1)[places][apart.order], dtype)

    def test_of_gradients_and_of_numbers(self, shape, dtype, threads):
        torch.set_num_threads(threads)
        w, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (0, 1))
        found = native.sums([Job(w), Job(w, gradient=g, power=-1)])
        close(torch.tensor(found, dtype=torch.float64), w.sum().double() + g.sum().double(), dtype)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_are_finite_only_if_all_are(self, shape, dtype, threads, bad):
        torch.set_num_threads(threads)
        g = numbers(*shape, dtype=dtype)
        assert abs(native.sums([Job(g)])) < float("inf")
        g.view(-1)[g.numel() // 2] = bad
        assert not abs(native.sums([Job(g)])) < float("inf")

    def test_with_an_addition(self, shape, dtype, threads):
        torch.set_num_threads(threads)
        rows, columns = shape
        w, row, column = (numbers(*s, dtype=dtype) for s in (shape, (columns,), (rows,)))
        _, apart, mask = entries(shape)
        for summed in (False, True):
            result = numbers(*shape, dtype=dtype, seed=1)
            added = w * row * column[:, None] * 0.3
            expected = torch.where(mask, result, result + added)
            along, across = torch.empty_like(column), torch.empty_like(row)
            sums = {"along": along, "across": across} if summed else {}
            before = result._version
            job = Job(
                w, added=result, power=2, scale=0.3, row=row, column=column, apart=apart, **sums
            )
            native.sums([job])
            close(result, expected, dtype)
            assert result._version > before, "autograd must know"
            if summed:
                squares = w.square().masked_fill(mask, 0.0)
                close(along, (squares * row).sum(1), dtype)
                close(across, (squares * column[:, None]).sum(0), dtype)


def factor(kind, shape, dtype, seed):
    """A factor of one of all shapes that broadcast; none at all."""
    rows, columns = shape
    sizes = {"one": (1, 1), "rows": (rows, 1), "columns": (1, columns), "all": shape}
    if kind == "none":
        return None
    return [1 + numbers(*sizes[kind], dtype=dtype, seed=seed).abs()]


@needs_compiler
@dtypes
@shapes
@pytest.mark.parametrize("kinds", ["rows columns", "all one", "none columns", "columns columns"])
@pytest.mark.parametrize("penalized", [False, True])
def test_steps(shape, dtype, kinds, penalized):
    torch.set_num_threads(2)
    w, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (0, 1))
    first, second = kinds.split()
    scale = [factor(first, shape, dtype, 2), factor(second, shape, dtype, 3)]
    back = [factor(second, shape, dtype, 4), factor(first, shape, dtype, 5)]
    penalty = [factor("rows", shape, dtype, 6), factor("columns", shape, dtype, 7)]
    penalty = penalty if penalized else []
    places, apart, mask = entries(shape)
    own, own_scale = (numbers(11, dtype=dtype, seed=seed) for seed in (8, 9))
    owner = torch.arange(len(places)) % 11

    def times(tensor, factors):
        for each in factors:
            tensor = tensor if each is None else tensor * each[0]
        return tensor

    gradient = -g + 0.1 * w + (times(w, penalty) if penalized else 0)
    expected = times(w - 0.2 * times(gradient, scale), back)
    numbered = torch.zeros(w.numel(), dtype=torch.long)
    numbered[places[apart.order]] = owner
    b, s = (each[numbered].view(shape) for each in (own, own_scale))
    expected = torch.where(mask, b * (w - 0.2 * s * (0.1 * w - g)), expected)
    before = w._version
    Steps([w], scale, penalty, back, [(apart, owner)], (own, own_scale)).run([g], 0.2, -1.0, 0.1)
    close(w, expected, dtype)
    assert w._version > before, "autograd must know"


@needs_compiler
class TestFitting:
    def test_what_fits(self):
        assert native.fits(torch.ones(2, 3), None, torch.nn.Parameter(torch.ones(2)))

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.ones(3, 2).T,
            torch.ones(2, dtype=torch.bfloat16),
            torch.ones(2, dtype=torch.float64),
            torch.ones(2, dtype=torch.int32),
            torch.ones(2, device="meta"),
            torch.ones(2).as_subclass(type("Other", (torch.Tensor,), {})),
        ],
        ids=["strides", "bfloat16", "two dtypes", "integers", "device", "subclass"],
    )
    def test_what_does_not(self, tensor):
        assert not native.fits(torch.ones(2), tensor)

    def test_not_where_torch_transforms_functions(self):
        seen = []

        def function(x):
            seen.append(native.is_available())
            return x.sum()

        torch.func.grad(function)(torch.ones(2))
        torch.func.vmap(function)(torch.ones(2, 2))
        assert seen == [False, False]


NO_ROOM = """
    import tempfile
    folder = tempfile.TemporaryDirectory
    def fail(*args, prefix=None, **kwargs):  # but not for torch, which wants some too
        if prefix == "pathspace-":
            raise FileNotFoundError("no usable temporary directory")
        return folder(*args, prefix=prefix, **kwargs)
    tempfile.TemporaryDirectory = fail
"""
SCRIPT = """
    import torch, pathspace as ps
    from pathspace import native
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    network = ps.trace(model, torch.ones(1, 3))
    optimizer = ps.optim.GSGD(model.parameters(), 0.1, network=network)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    loss = float(model(torch.ones(1, 3)).square().sum().detach())
    print(native.library() is not None, f"{loss:.3e}")
"""


@needs_compiler
def test_without_a_compiler_steps_are_the_same(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with_c = said(SCRIPT)
    assert with_c.startswith("True")
    loss = with_c.split()[1]
    assert said(SCRIPT, PATHSPACE_NATIVE="0") == f"False {loss}"
    assert said(SCRIPT, CC="", PATH=str(empty)) == f"False {loss}"
    assert said(SCRIPT, CC=str(tmp_path / "missing")) == f"False {loss}"
    assert said(SCRIPT, CC=shutil.which("false")) == f"False {loss}"
    assert said(NO_ROOM + SCRIPT) == f"False {loss}"


@needs_compiler
def test_nothing_is_left_behind_and_a_coarser_compiler_will_do(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\nfor a in "$@"; do [ "$a" = -march=native ] && exit 1; done\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    folder = tmp_path / "temporary"
    folder.mkdir()
    assert said(SCRIPT, CC=str(compiler), TMPDIR=str(folder)).startswith("True")
    assert list(folder.glob("pathspace*")) == []  # torch's compiler makes a folder of its own


def test_without_passes_nothing_fits():
    with torch_only():
        assert not native.fits(torch.ones(2))


@needs_compiler
@dtypes
@threads
@pytest.mark.parametrize("count", [1, 31, 33, 5000])
def test_single_entries_are_gathered_from_anywhere(dtype, threads, count):
    torch.set_num_threads(threads)
    source, generator = numbers(90, 70, dtype=dtype), torch.Generator().manual_seed(1)
    places = torch.randint(source.numel(), (count,), generator=generator)
    rows = torch.randperm(count + 5, generator=generator)[:count]
    found = torch.full((count + 5,), 7.0, dtype=torch.float64)
    expected = found.index_put((rows,), source.view(-1)[places].double())
    native.gather(source, places, found, rows)
    assert torch.equal(found, expected)
