"""Random masks for property tests: conditions over q, k, h, seqlen_k, a scalar w and tensors."""

from __future__ import annotations

from hypothesis import strategies as st


def _integers() -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["q", "k", "k", "h", "seqlen_k"]) | st.integers(-9, 40).map(str)

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(inner, st.integers(-3, 3)).map(lambda t: f"({t[0]} * {t[1]})"),
            st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 24)).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda x: f"abs({x})"),
            st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} < {t[2]} else {t[1]})"),
            st.tuples(inner, st.integers(1, 5)).map(lambda t: f"(-{t[0]} // -{t[1]})"),
        )

    return st.recursive(leaf, grown, max_leaves=4)


def conditions(tensors: bool = True) -> st.SearchStrategy[str]:
    """Texts of masks; with `tensors`, some read length[b] and bias[q, k]."""
    right = st.one_of(_integers(), st.just("w"), *([st.just("length[b]")] if tensors else []))
    comparison = st.tuples(_integers(), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), right).map(" ".join)
    leaf = comparison | st.just("bias[q, k] > 0") if tensors else comparison

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        both = st.tuples(inner, st.sampled_from(["and", "or"]), inner)
        return both.map(lambda t: f"({t[0]} {t[1]} {t[2]})") | inner.map(lambda x: f"(not {x})")

    return st.recursive(leaf, grown, max_leaves=4)
