"""What constants cost: the lengths of codes of which none is the beginning of another."""

import itertools
import math

import pytest
import torch

from normscope.bounds.graph.ir import Argument, Constant, Graph
from normscope.core.errors import InputError
from normscope_lab.generalize.description import Fixed, _own_bits, _tensor_bits, describe, written_bits

VALUES = [
    *(True, False, 2**63 - 1),
    *range(-3000, 3001),
    *(sign * digits * 10.0**exponent for sign in (-1, 1) for digits in range(1, 1000) for exponent in range(-8, 3)),
    *(0.0, -0.0, math.inf, -math.inf, math.nan, 1j, 2 - 0.5j),
    *map("".join, itertools.product("abc", repeat=2)),
    *(None, *Argument, torch.float32, torch.bool, torch.strided, torch.channels_last),
]  # fmt: skip
VALUES += [tuple(row) for length in range(4) for row in itertools.product([*VALUES[-9:], True, "a"], repeat=length)]


class TestNumbers:
    def test_the_shares_of_all_numbers_add_up_to_at_most_one(self):
        """Kraft's inequality, over as many numbers as there are time for."""
        different = {(type(one), repr(one)): one for one in VALUES}.values()
        assert sum(2.0 ** -_own_bits(one) for one in different) <= 1.0

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_so_do_those_of_all_sequences(self, length):
        """Numbers that stand in one place of several operators: repeats are cheap, and are paid for by the others."""
        few = [0, 1, -1, 2, 0.5, True, False]
        total = sum(2.0 ** -written_bits([("a", one) for one in row]) for row in itertools.product(few, repeat=length))
        assert total <= 1.0


class TestTensors:
    @pytest.mark.parametrize(
        ("value", "bits"),
        [
            (torch.randn(64, generator=torch.Generator().manual_seed(0)), 64 * 32),
            (torch.randn(64, generator=torch.Generator().manual_seed(0)).half(), 64 * 16),
            (torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.complex64).conj(), 64 * 64),
            (torch.randint(256, (64,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8), 64 * 8),
            (torch.randint(2, (64,), generator=torch.Generator().manual_seed(0)).bool(), 64),
        ],
        ids=lambda value: str(getattr(value, "dtype", value)),
    )
    def test_noise_costs_all_its_bits(self, value, bits):
        shape = 8 + 30  # its dtype, and where its shape begins and ends
        assert bits * 0.85 < _tensor_bits(value) <= bits + 1 + shape

    @pytest.mark.parametrize("seed", range(3))
    def test_random_labels_cost_a_bit_each_however_they_are_written(self, seed):
        """No code is shorter in the mean than the entropy of what it writes."""
        labels = torch.randint(2, (4000,), generator=torch.Generator().manual_seed(seed))
        for written in (labels, labels.bool(), labels.float(), labels.double(), labels.to(torch.int8)):
            assert _tensor_bits(written) >= 4000

    @pytest.mark.parametrize("value", [object(), None, torch.randn(3).to_sparse()])
    def test_what_is_no_plain_tensor_cannot_be_counted(self, value):
        kept = Constant(name="odd", kind="object", value=value, source="")
        graph = Graph(inputs=(), nodes=(), output="", mode="eval", constants=(kept,))
        found = describe(graph, [0], Fixed())
        assert found.nats == math.inf
        assert found.condition.status == "not met"
        assert "`odd`" in found.condition.why


def graph_of(*constants):
    named = tuple(Constant(name=name, kind=kind, value=value, source="") for name, kind, value in constants)
    return Graph(inputs=(), nodes=(), output="", mode="eval", constants=named)


class TestFixed:
    @pytest.mark.parametrize("declared", ["all", "*", ["b", "numbers"]])
    def test_weights_are_never_fixed(self, declared):
        graph = graph_of(
            ("w", "parameter", torch.ones(3)), ("b", "buffer", torch.ones(3)), ("b.x", "tensor", torch.ones(3))
        )
        fixed = Fixed.of(declared, graph)
        assert [one in fixed for one in graph.constants][:2] == [False, True]

    def test_a_tensor_of_the_same_name_with_another_value_was_not_declared(self):
        """A folded layer may bear the name of one that was fixed, and hold what BatchNorms have learned."""
        fixed = Fixed.of("b", graph_of(("b", "buffer", torch.ones(3))))
        assert graph_of(("b", "buffer", torch.ones(3))).constants[0] in fixed
        assert graph_of(("b", "buffer", torch.zeros(3))).constants[0] not in fixed
        assert graph_of(("b", "parameter", torch.ones(3))).constants[0] not in fixed

    @pytest.mark.parametrize("name", ["all", "numbers", "code", "a*", "a?", "a[b]", "[a]"])
    def test_a_name_goes_before_words_and_patterns(self, name):
        graph = graph_of(
            (name, "buffer", torch.ones(3)), ("ab", "buffer", torch.ones(3)), ("a", "buffer", torch.ones(3)),
            ("mul:other", "number", 0.5), ("to", "choice", ()),
        )  # fmt: skip
        fixed = Fixed.of([name], graph)
        assert [one in fixed for one in graph.constants] == [True, False, False, False, False]

    @pytest.mark.parametrize("declared", ["w", "c", ["b", "c*"]])
    def test_names_of_no_constant_are_refused(self, declared):
        with pytest.raises(InputError, match=r"no such buffer.*`b`"):
            Fixed.of(declared, graph_of(("w", "parameter", torch.ones(3)), ("b", "buffer", torch.ones(3))))
        for wrong in ([3], 3, [None]):
            with pytest.raises(InputError, match="names of buffers"):
                Fixed.of(wrong, graph_of())


def test_shapes_and_dtypes_are_paid_for():
    sizes = [_tensor_bits(torch.zeros(0, size)) for size in (1, 100, 10_000)]
    assert sizes[0] + 13 < sizes[1] + 13 < sizes[2]  # at least log2 of the size
    assert sum(2.0 ** -_tensor_bits(torch.zeros(0, dtype=one)) for one in (torch.half, torch.float, torch.bool)) < 1
