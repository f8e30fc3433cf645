import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pathspace as ps
from pathspace.evaluation import Objective


def network_and_data():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)
    )
    model[1].running_mean.normal_()
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    return model, ps.trace(model, x), x, y


def test_mean_over_uneven_batches_in_eval_mode():
    model, network, x, y = network_and_data()
    batches = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    before = torch.get_rng_state()
    value = Objective(network, F.cross_entropy, batches)()
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert model[1].training
    expected = F.cross_entropy(model.eval()(x), y).double()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(Objective(network, F.cross_entropy, (x, y))(), value)


def test_an_iterator_is_read_once_but_usable_twice():
    _, network, x, y = network_and_data()
    objective = Objective(network, F.cross_entropy, iter([(x, y)]))
    assert objective() == objective()


def test_differentiable_in_another_dtype():
    _, network, x, y = network_and_data()
    state = {
        n: t.detach().double() if t.is_floating_point() else t for n, t in network.state().items()
    }
    state["4.bias"].requires_grad_()
    Objective(network, F.cross_entropy, (x, y), dtype=torch.float64)(state).backward()
    assert state["4.bias"].grad.dtype == torch.float64
    assert network.model[4].bias.grad is None


@pytest.mark.parametrize(
    ("data", "message"),
    [([], "empty"), ([torch.ones(2, 4)], "pairs"), ((torch.ones(1, 4),) * 3, "pairs")],
)
def test_bad_data(data, message):
    _, network, _, _ = network_and_data()
    with pytest.raises(ps.PathspaceError, match=message):
        Objective(network, F.cross_entropy, data)()


def test_loss_that_does_not_average():
    _, network, x, y = network_and_data()
    with pytest.raises(ps.PathspaceError, match="mean over the batch"):
        Objective(network, lambda a, b: F.cross_entropy(a, b, reduction="none"), (x, y))()


def test_tied_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    network = ps.trace(model, x)
    torch.testing.assert_close(
        Objective(network, F.mse_loss, (x, y))().float(), F.mse_loss(model(x), y).detach()
    )
