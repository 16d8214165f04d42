"""Names of the weight layers that one module runs itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.auditing.rows import projection_names
from normscope.bounds.bounds_by_method import is_weight


def names(model, *batch):
    model = model.eval()
    with torch.random.fork_rng(devices=[]):
        graph = ns.capture(model, batch if len(batch) > 1 else batch[0])
    nodes = [node for node in graph if is_weight(node)]
    found = projection_names(model, graph, nodes)
    return [found.get(node.name, node.path) for node in nodes]


class Wrapped(nn.Module):
    """An attention inside another module, of a value with itself or with another one."""

    def __init__(self, **more):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, **more)

    def forward(self, x, y=None):
        return self.attn(x, x if y is None else y, x if y is None else y, need_weights=False)[0]


class Functional(nn.Module):
    """Two weights of its own, the second one used twice where `again`."""

    def __init__(self, again=False):
        super().__init__()
        self.first_weight, self.second = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.again = again

    def forward(self, x):
        x = F.linear(F.linear(x, self.first_weight).relu(), self.second)
        return F.linear(x.relu(), self.second) if self.again else x


class Blocks(nn.Module):
    """Applies two blocks of one weight, which are no whole rows and have no name of their own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return F.linear(x[:, :2], self.weight[:2, :2]).relu() + F.linear(x[:, 2:], self.weight[2:, 2:])


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x).relu())


X, Y = torch.ones(2, 3, 8), torch.ones(2, 5, 8)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (Wrapped(), (X,), ["attn.in_proj", "attn.out_proj"]),
        (Wrapped(), (X, Y), ["attn.in_proj[0:8]", "attn.in_proj[8:24]", "attn.out_proj"]),
        (
            Wrapped(kdim=6, vdim=6),
            (X, torch.ones(2, 5, 6)),
            ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"],
        ),
        (Functional(), (torch.ones(2, 4),), ["first", "second"]),
        (Functional(again=True), (torch.ones(2, 4),), ["first", "second", "second"]),
        (Blocks(), (torch.ones(2, 4),), ["", ""]),
        (Twice(), (torch.ones(2, 4),), ["layer", "layer"]),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (torch.ones(2, 4),), ["0", "1"]),
    ],
)
def test_weights_of_one_module_are_told_apart_by_their_parameters(model, batch, expected):
    assert names(model, *batch) == expected


def test_rows_and_what_is_folded_with_them_have_these_names():
    class Normalized(Functional):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return F.linear(self.norm(F.linear(x, self.first_weight)), self.second)

    audit = ns.audit(Normalized().eval(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert [row.path for row in audit.layers] == ["first", "norm", "second"]
    assert audit.layers[1].folded_with == "first"
    assert audit.skipped == ()
