"""What happens to a GEMM's accumulators before they are stored: alpha and beta, or expressions of the spec."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cutegen.dtypes import DTYPES, DType
from cutegen.expression import Arguments, Expression, arguments, helpers
from cutegen.plan.batches import Batches
from cutegen.plan.signature import KernelParam, Pointer, Role, Scalar, ScalarArg, Stride, TensorArg
from cutegen.spec.gemm import GemmSpec

_DEFAULTS = {"alpha": 1.0, "beta": 0.0}


@dataclass(frozen=True)
class Finish:
    """`expressions` are that of C and, if there is a second output, that of Aux; none stands for alpha * acc + beta * c,
    where C is read only if beta is not 0. `dtype` is the element type of their tensors: vectors along M or N, and
    matrices. In a `grouped` product a vector along N has a row for each group, and the others have no batches.
    """

    expressions: tuple[Expression, ...]
    dtype: DType
    grouped: bool = False

    @property
    def expression(self) -> Expression | None:
        """What becomes C."""
        return self.expressions[0] if self.expressions else None

    @property
    def aux(self) -> Expression | None:
        """What becomes Aux, the second output."""
        return self.expressions[1] if len(self.expressions) > 1 else None

    @property
    def of_c(self) -> Finish:
        """What C alone needs."""
        return replace(self, expressions=self.expressions[:1])

    @property
    def of_aux(self) -> Finish:
        """What Aux alone needs."""
        return replace(self, expressions=self.expressions[1:])

    @property
    def arguments(self) -> Arguments:
        return arguments("epilogue.aux", *self.expressions)

    @property
    def formula(self) -> str:
        return "alpha * acc + beta * C" if self.expression is None else self.expression.text

    @property
    def reads_c(self) -> bool:
        """Whether the expressions read C's old values."""
        return any("c" in expression.bare for expression in self.expressions)

    @property
    def role(self) -> Role:
        """C's role in a call."""
        return "inout" if self.expression is None or self.reads_c else "output"

    @property
    def read_if(self) -> str | None:
        return "beta" if self.expression is None else None

    def _named(self, index: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name, found in self.arguments.tensors if found == index)

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

    def outer(self, index: tuple[str, ...]) -> tuple[str, ...]:
        """The modes of a tensor besides its `index`."""
        if self.grouped:
            return ("groups",) if index == ("n",) else ()
        return ("batch",)

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        return tuple(
            TensorArg(name, self.dtype, (*outer, *index), index[-1], 1, optional=frozenset(outer))
            for name, index in self.arguments.tensors
            for outer in (self.outer(index),)
        )

    @property
    def scalars(self) -> tuple[ScalarArg, ...]:
        names = self.arguments.scalars if self.expressions else ("alpha", "beta")
        return tuple(ScalarArg(name, "float", _DEFAULTS.get(name)) for name in names)

    @property
    def params(self) -> tuple[tuple[KernelParam, str], ...]:
        """What the kernel takes for the tensors, with its names for it; scalars come last in a kernel."""
        found: list[tuple[KernelParam, str]] = []
        for tensor in self.tensors:
            name = tensor.name
            found.append((Pointer(name), name))
            found += [(Stride(name, mode), f"batch_{name}") for mode in tensor.modes if mode in ("batch", "groups")]
            if name in self.matrices:
                found.append((Stride(name, "m"), f"ld_{name}"))
        return tuple(found)

    def aux_tensors(self, batches: Batches, dtype: DType, contiguous: str, vector: int) -> tuple[TensorArg, ...]:
        """The second output of a call, if there is one."""
        if self.aux is None:
            return ()
        return (batches.tensor("aux", dtype, ("m", "n"), contiguous, vector, "output"),)

    def aux_params(self, batches: Batches, outer: str) -> tuple[tuple[KernelParam, str], ...]:
        """What the kernel takes to store it. `outer` is the mode that has a stride."""
        if self.aux is None:
            return ()
        return (batches.pointer("aux", "Aux"), (Stride("aux", outer), "ldAux"), *batches.stride("aux", "Aux"))

    @property
    def scalar_params(self) -> tuple[tuple[KernelParam, str], ...]:
        return tuple((Scalar(scalar.name), scalar.name) for scalar in self.scalars)

    @property
    def dtypes(self) -> dict[str, DType]:
        return {tensor.name: self.dtype for tensor in self.tensors}

    @property
    def suffix(self) -> str:
        """For the kernel's symbol."""
        return "_aux".join(f"_{expression.identifier()}" for expression in self.expressions)

    # ---- code

    def offset(self, name: str) -> str:
        """From a tensor to the part of it that a tile's batch or group reads."""
        return f"batch * batch_{name} + " if self.outer(dict(self.arguments.tensors)[name]) else ""

    def start(self, name: str) -> str:
        """Where that part begins."""
        return f"{name} + {offset.removesuffix(' + ')}" if (offset := self.offset(name)) else name

    @property
    def definitions(self) -> tuple[str, ...]:
        return helpers(*(expression.tree for expression in self.expressions))

    def cpp(self, acc: str, index: int = 0) -> str:
        """Expression `index` over `acc` and local names: `bias_n` for bias[n], `scale_m` for scale[m], `old_mn` for
        old[m, n], `c_mn` for the old C.
        """
        names = {scalar: scalar for scalar in self.arguments.scalars}
        names |= {name: f"{name}_{''.join(modes)}" for name, modes in self.arguments.tensors}
        return self.expressions[index].cpp({**names, "acc": acc, "c": "c_mn"})


def pointers_line(spec: GemmSpec) -> tuple[str, ...]:
    """What arrays of pointers mean, if there are any."""
    names = ("A", "B", "C", *(("Aux",) if spec.epilogue.aux else ()))
    lie = f"the matrices {', '.join(names[:-1])} and {names[-1]} of a product lie anywhere, those of a name in equal strides"
    return (lie,) if spec.problem.pointers else ()


def first_line(spec: GemmSpec) -> str:
    """What the kernel computes."""
    finish = finish_of(spec)
    if finish.expression is None:
        scales = "".join(f" * scale_{name}" for name in spec.scales.rows)
        return f"C = alpha{scales} A B^T + beta C"
    return f"C = {finish.formula}, acc = {' * '.join(('A B^T', *(f'scale_{name}' for name in spec.scales.rows)))}"


def aux_line(spec: GemmSpec) -> tuple[str, ...]:
    """What the second output is, if there is one."""
    found = spec.epilogue.aux
    return () if found is None else (f"Aux (M,N) {spec.stored[1]} {spec.c_major}-major = {found}",)


def reads_note(spec: GemmSpec) -> str:
    return "; C is read only if beta is not 0" if spec.epilogue.out is None else ""


def finish_of(spec: GemmSpec) -> Finish:
    """The finish that a spec asks for."""
    return Finish(spec.expressions, DTYPES[spec.operands], spec.problem.groups is not None)
