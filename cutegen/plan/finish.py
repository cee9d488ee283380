"""What happens to a GEMM's accumulators before they are stored: alpha and beta, or an expression of the spec."""

from __future__ import annotations

from dataclasses import dataclass

from cutegen.dtypes import DTYPES, DType
from cutegen.expression import Expression
from cutegen.plan.signature import KernelParam, Pointer, Role, Scalar, ScalarArg, Stride, TensorArg
from cutegen.spec.gemm import GemmSpec

_DEFAULTS = {"alpha": 1.0, "beta": 0.0}


@dataclass(frozen=True)
class Finish:
    """`expression` None stands for alpha * acc + beta * c, where C is read only if beta is not 0. `dtype` is the element
    type of the expression's tensors: vectors along M or N, and matrices.
    """

    expression: Expression | None
    dtype: DType

    @property
    def formula(self) -> str:
        return "alpha * acc + beta * C" if self.expression is None else self.expression.text

    @property
    def reads_c(self) -> bool:
        """Whether the expression reads C's old values."""
        return self.expression is not None and "c" in self.expression.bare

    @property
    def role(self) -> Role:
        """C's role in a call."""
        return "inout" if self.expression is None or self.reads_c else "output"

    @property
    def read_if(self) -> str | None:
        return "beta" if self.expression is None else None

    def _named(self, index: tuple[str, ...]) -> tuple[str, ...]:
        tensors = () if self.expression is None else self.expression.tensors
        return tuple(name for name, found in tensors if found == index)

    @property
    def rows(self) -> tuple[str, ...]:
        """Vectors along M."""
        return self._named(("m",))

    @property
    def columns(self) -> tuple[str, ...]:
        """Vectors along N."""
        return self._named(("n",))

    @property
    def matrices(self) -> tuple[str, ...]:
        return self._named(("m", "n"))

    # ---- calling convention

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        batch = frozenset({"batch"})
        tensors = () if self.expression is None else self.expression.tensors
        return tuple(
            TensorArg(name, self.dtype, ("batch", *index), index[-1], 1, optional=batch) for name, index in tensors
        )

    @property
    def scalars(self) -> tuple[ScalarArg, ...]:
        names = ("alpha", "beta") if self.expression is None else self.expression.scalars
        return tuple(ScalarArg(name, "float", _DEFAULTS.get(name)) for name in names)

    @property
    def params(self) -> tuple[tuple[KernelParam, str], ...]:
        """What the kernel takes for the tensors, with its names for it; scalars come last in a kernel."""
        found: list[tuple[KernelParam, str]] = []
        for tensor in self.tensors:
            name = tensor.name
            found += [(Pointer(name), name), (Stride(name, "batch"), f"batch_{name}")]
            if name in self.matrices:
                found.append((Stride(name, "m"), f"ld_{name}"))
        return tuple(found)

    @property
    def scalar_params(self) -> tuple[tuple[KernelParam, str], ...]:
        return tuple((Scalar(scalar.name), scalar.name) for scalar in self.scalars)

    @property
    def dtypes(self) -> dict[str, DType]:
        return {tensor.name: self.dtype for tensor in self.tensors}

    @property
    def suffix(self) -> str:
        """For the kernel's symbol."""
        return "" if self.expression is None else f"_{self.expression.identifier()}"

    # ---- code

    @property
    def definitions(self) -> tuple[str, ...]:
        return () if self.expression is None else self.expression.definitions

    def cpp(self, acc: str) -> str:
        """The expression over `acc` and local names: `bias_n` for bias[n], `scale_m` for scale[m], `old_mn` for old[m, n],
        `c_mn` for the old C.
        """
        assert self.expression is not None
        names = {scalar: scalar for scalar in self.expression.scalars}
        names |= {name: f"{name}_{''.join(index)}" for name, index in self.expression.tensors}
        return self.expression.cpp({**names, "acc": acc, "c": "c_mn"})


def first_line(spec: GemmSpec) -> str:
    """What the kernel computes."""
    finish = finish_of(spec)
    if finish.expression is None:
        scales = "".join(f" * scale_{name}" for name in spec.scales.rows)
        return f"C = alpha{scales} A B^T + beta C"
    return f"C = {finish.formula}, acc = {' * '.join(('A B^T', *(f'scale_{name}' for name in spec.scales.rows)))}"


def reads_note(spec: GemmSpec) -> str:
    return "; C is read only if beta is not 0" if spec.epilogue.out is None else ""


def finish_of(spec: GemmSpec) -> Finish:
    """The finish that a spec asks for."""
    return Finish(spec.epilogue.expression, DTYPES[spec.epilogue.operands or spec.dtypes.c])
