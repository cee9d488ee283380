"""The one Jinja environment, its filters, and the tidying of what it renders."""

from __future__ import annotations

import re
from functools import lru_cache

import jinja2

from cutegen import __version__
from cutegen.data import data_dir
from cutegen.layout import cpp_integer, cpp_layout, cpp_shape, cpp_swizzle
from cutegen.plan.kernel_plan import KernelPlan
from cutegen.spec.dump import to_yaml

_COMMENT_COLUMN = 100


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Strict: an undefined name is an error, not an empty string."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters["layout"] = cpp_layout
    env.filters["shape"] = cpp_shape
    env.filters["integer"] = cpp_integer
    env.filters["swizzle"] = cpp_swizzle
    env.filters["rstrip"] = str.rstrip
    return env


class _Context:
    """A plan with the two things that only an emitted file shows: the version and the spec."""

    def __init__(self, plan: KernelPlan) -> None:
        self._plan = plan
        self.version = __version__
        self.spec_lines = to_yaml(plan.spec).splitlines()
        self.param_lines = _wrapped(plan.params_cpp)

    def __getattr__(self, name: str) -> object:
        return getattr(self._plan, name)


def _wrapped(parts: tuple[str, ...], width: int = 120) -> list[str]:
    """A parameter list in few lines."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def render(plan: KernelPlan) -> str:
    """The `.cu` of a plan, equal to the byte on every machine."""
    return tidy(environment().get_template(plan.template).render(plan=_Context(plan)))


def tidy(text: str) -> str:
    """Lines up trailing mode comments, and leaves one blank line where several stood."""
    lines = []
    for line in text.splitlines():
        line = line.rstrip()
        match = re.fullmatch(r"(.*\S;) // (.*)", line)
        if match and not line.lstrip().startswith("//"):
            line = f"{match[1]:<{_COMMENT_COLUMN}}  // {match[2]}"
        lines.append(line)
    joined = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    joined = re.sub(r"\{\n\n", "{\n", joined)
    return joined.strip("\n") + "\n"
