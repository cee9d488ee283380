"""Where the matrices of one product of a batch lie: a stride from each other, or anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cutegen.dtypes import DType
from cutegen.plan.signature import (
    KernelParam,
    Pointer,
    PointerArray,
    Role,
    Stride,
    TensorArg,
    TensorMapArray,
    TensorMapParam,
)
from cutegen.spec.gemm import GemmSpec

Named = tuple[KernelParam, str]
Swizzle = Literal[0, 32, 64, 128]


@dataclass(frozen=True)
class Batches:
    """`outer` are the modes that matrices of one tensor are counted by, none where there is one matrix. With `pointers`
    each matrix is a tensor of its own, and kernels take arrays of pointers, CUTLASS's `ptr_A`.
    """

    outer: tuple[str, ...] = ("batch",)
    pointers: bool = False

    @property
    def strides(self) -> tuple[str, ...]:
        """The modes of `outer` that have a stride."""
        return () if self.pointers else self.outer

    def tensor(
        self,
        name: str,
        dtype: DType,
        modes: tuple[str, ...],
        contiguous: str,
        vector: int,
        role: Role = "input",
        read_if: str | None = None,
    ) -> TensorArg:
        """A matrix of `modes` as a caller passes it, or a list of them."""
        return TensorArg(
            name,
            dtype,
            (*self.strides, *modes),
            contiguous,
            vector,
            role,
            frozenset({"batch"}) & {*self.strides},
            read_if,
            listed="batch" if self.pointers else None,
        )

    def pointer(self, tensor: str, letter: str) -> Named:
        """What a kernel takes to find a tensor's matrices, and its name for it."""
        return (PointerArray(tensor), f"ptr_{letter}") if self.pointers else (Pointer(tensor), letter)

    def stride(self, tensor: str, letter: str) -> tuple[Named, ...]:
        """The stride from matrix to matrix, if there is one."""
        return tuple((Stride(tensor, mode), f"batch_{letter}") for mode in self.strides)

    def map(
        self, tensor: str, modes: tuple[str, str], box: tuple[int, int], swizzle: Swizzle, clipped: bool = False
    ) -> KernelParam:
        """A TMA descriptor of a tensor's matrices, or an array of those of each."""
        strides = self.strides
        found = TensorMapParam(tensor, (*modes, *strides), (*box, *(1 for _ in strides)), swizzle, clipped)
        return TensorMapArray(found) if self.pointers else found

    def matrix(self, letter: str) -> str:
        """The address of the matrix of a product, in C++."""
        if self.pointers:
            return f"ptr_{letter}[batch]"
        return f"{letter} + batch * batch_{letter}" if self.outer else letter


STRIDED = Batches()


def batches_of(spec: GemmSpec) -> Batches:
    """Those of A and C; a grouped product has one of each."""
    return Batches(() if spec.problem.groups is not None else ("batch",), spec.problem.pointers)
