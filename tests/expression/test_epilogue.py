"""Epilogue expressions: what is refused, the C++ they become, and that f32 stays within the reference's bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cutegen import api
from cutegen.errors import SpecError
from cutegen.expression import FUNCTIONS, Bounded, Expression, arguments, exact, find
from cutegen.expression.bounded import LOG2_TAIL
from cutegen.spec import GemmSpec

INDICES = (("m",), ("n",), ("m", "n"))


def parsed(text: str) -> Expression:
    return find(text, INDICES, ("acc", "c"), frozenset({"a", "warp"}), "out")


def test_names() -> None:
    found = parsed("gelu(alpha * acc + bias[n]) * s[m] + residual[m, n] - c + bias[n]")
    assert found.scalars == ("alpha",) and found.bare == {"acc", "c"}
    assert dict(found.tensors) == {"bias": ("n",), "s": ("m",), "residual": ("m", "n")}
    assert [text.split("(")[0].split()[-1] for text in found.definitions] == ["exp2_approx", "min_nan", "gelu"]
    assert parsed("relu(acc)").definitions[1:] == ("CUTE_DEVICE float relu(float x) { return max_nan(x, 0.0f); }",)
    assert parsed("min(acc, alpha)").definitions == (
        "CUTE_DEVICE float min_nan(float x, float y) {\n  float z;\n"
        '  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));\n  return z;\n}',
    )


@pytest.mark.parametrize(
    ("text", "cpp"),
    [
        ("alpha * acc + bias[n]", "alpha * X + B"),
        ("-acc / 3", "-X / 3.0f"),
        ("acc * (1 + alpha)", "X * (1.0f + alpha)"),
        ("max(acc, 0.1)", "max_nan(X, 0.1f)"),
        ("clamp(acc, -1, 1)", "clamp(X, -1.0f, 1.0f)"),
        ("acc - (alpha - bias[n])", "X - (alpha - B)"),
    ],
)
def test_cpp(text: str, cpp: str) -> None:
    assert parsed(text).cpp({"acc": "X", "bias": "B", "alpha": "alpha"}) == cpp


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acc +", "not an expression"),
        ("acc ** 2", "not allowed"),
        ("acc if 1 else 2", "must be a condition"),
        ("__import__('os')", "unknown function"),
        ("acc.real", "not allowed"),
        ("foo(acc)", "unknown function"),
        ("gelu(acc, 1)", "takes 1 argument"),
        ("acc + bias[k]", "can't be indexed so"),
        ("acc + bias[0]", "can't be indexed so"),
        ("acc + bias[n] + bias[m]", "two ways"),
        ("acc + warp", "is taken"),
        ("acc + gelu", "is taken"),
        ("acc + True", "a condition is not a number"),
        ("acc + 1e99", "32 bits"),
        ("acc + x + x[n]", "is taken"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parsed(text)


def spec(dtypes: dict[str, str] | None = None, **parts: dict[str, object]) -> GemmSpec:
    types = {"a": "f16", "b": "f16", "c": "f16", **(dtypes or {})}
    return GemmSpec(problem={"m": 8, "n": 8, "k": 8}, dtypes=types, **parts)


def test_a_spec_names_the_field() -> None:
    for out, words in (("gelu(acc", "not an expression"), ("bias[n]", "does not use the product")):
        with pytest.raises(SpecError) as error:
            spec(epilogue={"out": out})
        assert error.value.faults[0].field == "epilogue.out" and words in str(error.value)


@pytest.mark.parametrize(
    ("parts", "field", "words"),
    [
        ({"epilogue": {"aux": "acc"}}, "epilogue.aux", "beside epilogue.out, which is missing"),
        ({"epilogue": {"out": "acc", "aux": "gelu(acc"}}, "epilogue.aux", "not an expression"),
        ({"epilogue": {"out": "acc", "aux": "bias[n]"}}, "epilogue.aux", "does not use the product"),
        ({"epilogue": {"out": "acc + s[n]", "aux": "acc + s[m]"}}, "epilogue.aux", "s is indexed in two ways"),
        ({"epilogue": {"out": "acc + s[n]", "aux": "acc + s"}}, "epilogue.aux", "s is a scalar and a tensor"),
        ({"epilogue": {"out": "acc + aux[n]"}}, "epilogue.out", "the name aux is taken"),
        ({"epilogue": {"out": "acc"}, "dtypes": {"aux": "f32"}}, "dtypes.aux", "epilogue.aux, which is missing"),
        ({"epilogue": {"out": "acc"}, "align": {"aux": 1}}, "align.aux", "epilogue.aux, which is missing"),
    ],
)
def test_what_a_second_output_may_not_be(parts: dict[str, dict[str, str]], field: str, words: str) -> None:
    with pytest.raises(SpecError) as error:
        spec(**parts)
    assert error.value.faults[0].field == field and words in str(error.value)


def test_two_expressions_take_their_arguments_together() -> None:
    found = arguments("aux", parsed("gelu(alpha * acc + bias[n])"), parsed("acc * s[m] + bias[n] * beta"))
    assert found.scalars == ("alpha", "beta") and found.tensors == (("bias", ("n",)), ("s", ("m",)))


def test_the_type_of_a_second_output() -> None:
    both = {"out": "relu(acc)", "aux": "acc"}
    assert spec(epilogue={"out": "relu(acc)"}).stored == ("f16",)
    assert spec(epilogue=both).stored == ("f16", "f16")
    assert spec(epilogue=both, dtypes={"aux": "f32"}).stored == ("f16", "f32")


_F = np.float32
_1 = _F(1)


def _reciprocal(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return _1 / x


def _gelu(x: NDArray[np.float32], output: str = "f32") -> NDArray[np.float32]:
    a = np.minimum(np.abs(x), _F(6.5))
    first, *others = LOG2_TAIL[output]
    p = _F(first)
    for coefficient in others:
        p = p * a + _F(coefficient)
    return np.maximum(x, _F(0)) - a * np.exp2(p)


_F32 = {
    "exp": np.exp,
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
    "tanh": np.tanh,
    "abs": np.abs,
    "log": np.log,
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": lambda x: _reciprocal(_1 + np.exp2(_F(-1.442695) * x)),
    "silu": lambda x: x * _F32["sigmoid"](x),
    "gelu": lambda x: _gelu(x),
    "gelu@f16": lambda x: _gelu(x, "f16"),
    "gelu@bf16": lambda x: _gelu(x, "bf16"),
    "gelu@fp8": lambda x: _gelu(x, "fp8"),
    "gelu_tanh": lambda x: x * _reciprocal(_1 + np.exp2(x * (x * x * _F(-0.10294324) - _F(2.3022082)))),
}


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.arity == 1])
def test_f32_stays_within_the_bound(name: str) -> None:
    """The function of an inexact argument, computed in f32, against the reference with its bound."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-8, 8, 20000).astype(np.float32)
    y = rng.uniform(-1, 1, 20000).astype(np.float32)
    if name in ("log", "sqrt"):
        y = np.copysign(y, x)
    asked, _, output = name.partition("@")
    bits = {"fp8": 4, "bf16": 8, "f16": 11}.get(output, 24)
    found = parsed(f"{asked}(acc * s - 0.1)").rounded(bits).bounded({"acc": exact(x), "s": exact(y)})
    with np.errstate(all="ignore"):
        computed = _F32[name](x * y - np.float32(0.1)).astype(np.float64)
    keep = np.isfinite(computed)
    computed, found = computed[keep], Bounded(found.value[keep], found.error[keep])
    assert computed.dtype == np.float64 and (np.abs(computed - found.value) <= found.error).all()
    assert np.median(found.error / np.maximum(np.abs(found.value), 1e-3)) < (1e-5 if bits == 24 else 2.0 ** -(bits + 1))


@pytest.mark.parametrize(
    ("name", "low"), [("gelu", 0.0), ("gelu_tanh", 0.0), ("sigmoid", 0.0), ("silu", 0.0), ("relu", 0.0)]
)
def test_activations_far_out(name: str, low: float) -> None:
    """Large arguments neither overflow nor lose the bound, and infinity stays."""
    x = exact(np.array([-1e30, -300.0, -40.0, 40.0, 300.0, 1e30]))
    found = parsed(f"{name}(acc)").bounded({"acc": x})
    want = np.array([low, low, low, 1.0, 1.0, 1.0]) * (1 if name == "sigmoid" else np.maximum(x.value, 0))
    assert np.allclose(found.value, want, rtol=1e-6, atol=1e-12)
    assert (found.error <= 1e-5 * np.maximum(np.abs(x.value), 1)).all()


@pytest.mark.parametrize(
    ("output", "bits", "own", "all_in_all"),
    [("f16", 11, 1 / 15, 1.2e-6), ("bf16", 8, 1 / 5, 1.4e-5), ("fp8", 4, 1 / 10, 1.1e-4)],
)
def test_gelu_for_fewer_bits_costs_less_than_their_rounding(
    output: str, bits: int, own: float, all_in_all: float
) -> None:
    """Of itself at most the share `own` of half a unit in the last place, for x > -1; else `all_in_all`."""
    x = np.linspace(-20, 20, 40001).astype(np.float32)
    exact_values = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    off = np.abs(_gelu(x, output) - exact_values)
    assert (off[x > -1] <= own * 2.0**-bits * np.abs(exact_values[x > -1]) + 2.0**-24).all()
    assert (off <= all_in_all + 2.0**-23 * np.abs(exact_values)).all()


def test_a_function_is_as_good_as_its_output() -> None:
    def used(text: str, bits: int) -> set[str]:
        return {node.op for node in parsed(text).rounded(bits).tree.walk() if "gelu" in node.op}

    assert (
        used("gelu(acc)", 8) == {"gelu@bf16"}
        and used("gelu(acc)", 11) == {"gelu@f16"}
        and used("gelu(acc)", 24) == {"gelu"}
    )
    assert used("-gelu(acc) * bias[n] / 3", 3) == {"gelu@fp8"}
    assert used("gelu(acc) - bias[n]", 8) == {"gelu"} and used("sqrt(gelu(acc))", 8) == {"gelu"}
    both = GemmSpec(
        arch="sm_90a",
        problem={"m": 512, "n": 512, "k": 512},
        dtypes={"a": "bf16", "b": "bf16", "c": "bf16", "aux": "f32"},
        epilogue={"out": "gelu(acc)", "aux": "gelu(acc)"},
    )
    source = api.emit(both)
    assert "acc = gelu_bf16(acc)" in source and "TAux(gelu(acc))" in source
    with pytest.raises(SpecError, match="unknown function"):
        parsed("gelu_bf16(acc)")


def test_the_formula_of_gelu_is_close_everywhere() -> None:
    """Against x erfc(-x / sqrt 2) / 2: within 6e-8 in exact arithmetic and a rounding more in f32."""
    x = np.linspace(-20, 20, 40001).astype(np.float32)
    exact_values = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    assert (np.abs(_gelu(x) - exact_values) <= 6e-8 + 1.5 * 2.0**-24 * np.maximum(np.abs(exact_values), 1)).all()
    found = parsed("gelu(acc)").bounded({"acc": exact(x)})
    assert (found.error <= 1.5e-6 * np.maximum(np.abs(x), 1)).all()
