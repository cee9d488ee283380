"""`run` and `bench`: the main job on one spec."""

from __future__ import annotations

import hashlib
import importlib
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from cutegen import api, hardware
from cutegen.cli import show
from cutegen.cli.progress import coloured, step
from cutegen.errors import CutegenError, LaunchError, ToolchainError
from cutegen.plan.preflight import work_and_traffic
from cutegen.plan.reduced import reduced
from cutegen.report import inputs
from cutegen.spec import AttentionForwardSpec, GemmSpec, KernelSpec
from cutegen.spec.attention_forward import Window
from cutegen.spec.dump import to_yaml

# What `--against` compares with, by family: the key in results, and the name shown.
_RIVALS: dict[type[KernelSpec], tuple[str, str]] = {AttentionForwardSpec: ("flash_attention_2", "FlashAttention-2")}


def the_gpu() -> tuple[str | None, tuple[int, int] | None]:
    """Name and capability of the GPU, or None."""
    from cutegen.kernel.driver import driver

    try:
        device = driver().device(0)
        return device.name, device.capability
    except CutegenError:
        return None, None


def native(spec: KernelSpec, capability: tuple[int, int] | None, quiet: bool) -> KernelSpec:
    """The spec for the GPU that is there: a cubin runs on its own generation only, but older atoms compile for newer
    GPUs.

    Raises:
        LaunchError: the GPU is older than the spec's arch, or no known one.
    """
    arch = hardware.arch(spec.arch)
    if capability is None or arch.runs_on(capability):
        return spec
    own = f"sm_{capability[0]}{capability[1]}"
    if own not in hardware.ARCHS or arch.name.endswith("a") or capability < arch.capability:
        raise LaunchError(f"the spec is for {arch}, but the GPU is {own}")
    if not quiet:
        print(f"  compiled for {own}, the GPU that is here, instead of {arch}")
    return spec.model_copy(update={"arch": own})


def _library() -> str:
    """Where inputs are made: torch on the GPU if it is there, else numpy."""
    try:
        torch = importlib.import_module("torch")
        return "torch" if torch.cuda.is_available() else "numpy"
    except ImportError:
        return "numpy"


def run_spec(path: Path, spec: KernelSpec, options: Namespace) -> dict[str, Any]:
    """Emits, checks, compiles, runs and validates; says which steps were done. `ok` is None where nothing could run."""
    quiet = options.json
    name, capability = the_gpu()
    spec = native(spec, capability if options.device != "sim" else None, quiet)
    found = api.check(spec)
    if not quiet:
        show.preflight(str(path), found)
    with step(f"compiling {found.symbol}", quiet):
        kernel = api.build(spec)
    if not quiet:
        show.binary(kernel.compiled)
    outcome: dict[str, Any] = {
        "spec": str(path),
        "kernel": found.symbol,
        "steps": ["emit", "check", "compile"],
        "ok": None,
        "report": None,
    }
    if name is None and options.device == "cuda":
        raise ToolchainError("no GPU: `cutegen doctor` says what is missing")
    if name is None or options.device == "sim":
        return simulate_spec(kernel, spec, options, outcome)
    arrays = inputs.for_signature(
        kernel.signature,
        api.problem(spec),
        options.seed,
        library=_library(),  # type: ignore[arg-type]
        inouts=reads_c(spec),
    )
    with step("running and validating", quiet):
        report = kernel.validate(arrays, trial_scalars(spec))
    outcome |= {
        "steps": [*outcome["steps"], "run", "validate"],
        "ok": report.ok,
        "report": report.to_dict(),
        "device": name,
    }
    if not quiet:
        show.verdict(name, report)
    return outcome


def simulate_spec(kernel: api.Kernel, spec: KernelSpec, options: Namespace, outcome: dict[str, Any]) -> dict[str, Any]:
    """Runs and validates on the simulator, on a few tiles unless the problem was set by hand."""
    quiet = options.json
    whole = api.problem(spec)
    given = [o.split("=")[0].removeprefix("problem.") for o in options.overrides if o.startswith("problem.")]
    extents = reduced(kernel.signature, whole, given)
    if not quiet:
        size = ", ".join(f"{mode} {extent}" for mode, extent in extents.items())
        cut = "" if extents == whole else "; cut down to a few tiles, --set problem.FIELD=VALUE asks for more"
        print(f"  simulated      {size}{cut}")
    arrays = inputs.for_signature(kernel.signature, extents, options.seed, inouts=reads_c(spec))
    seen: list[Any] = []

    def call(*tensors: Any, **keywords: Any) -> Any:
        output, result = kernel.simulate(
            *tensors, schedule_seed=options.schedule_seed, profile=options.profile and not seen, **keywords
        )
        if result is not None:
            result.raise_findings()
            seen.append(result)
        return output

    with step("simulating and validating", quiet):
        report = kernel.validate(arrays, trial_scalars(spec), call=call, twice=False)
    outcome |= {
        "steps": [*outcome["steps"], "run", "validate"],
        "ok": report.ok,
        "report": report.to_dict(),
        "device": "simulator",
        "problem": extents,
        "profile": seen[0].profile.to_dict() if options.profile and seen else None,
    }
    if not quiet:
        show.verdict("the simulator, which found no fault", report)
        if options.profile and seen:
            show.profile(seen[0].profile, kernel.source)
    return outcome


def trial_scalars(spec: KernelSpec) -> dict[str, float]:
    """Scalars of a validation run: not the neutral ones, so that they are seen to work. beta stays 0: C is poisoned."""
    if isinstance(spec, AttentionForwardSpec):
        dropout = {"p_dropout": 0.1} if spec.dropout else {}
        return {argument.name: 0.5 for argument in spec.arguments if not argument.modes} | dropout
    if not isinstance(spec, GemmSpec):
        return {}
    return {"alpha": 0.75, "beta": 0.0} if spec.epilogue.out is None else given_scalars(spec)


def reads_c(spec: KernelSpec) -> bool:
    """Whether an expression reads the old C."""
    return isinstance(spec, GemmSpec) and any("c" in expression.bare for expression in spec.epilogue.expressions)


def given_scalars(spec: KernelSpec) -> dict[str, float]:
    """Scalars that have no default, which every call must be given."""
    if isinstance(spec, AttentionForwardSpec):
        return trial_scalars(spec)
    found = spec.epilogue.expressions if isinstance(spec, GemmSpec) else ()
    return {scalar: 0.75 for expression in found for scalar in expression.scalars}


def bench_spec(path: Path, spec: KernelSpec, options: Namespace) -> dict[str, Any]:
    """Validates, then times; with `--against`, in alternating rounds of one run.

    Raises:
        ToolchainError: no GPU, or no torch to hold the inputs.
        LaunchError: the kernel spills registers and that was not allowed.
    """
    from cutegen.bench import baselines, results, timing

    name, capability = the_gpu()
    if name is None or _library() != "torch":
        raise ToolchainError("bench needs a GPU and torch: `cutegen doctor` says what is missing")
    quiet = options.json
    spec = native(spec, capability, quiet)
    with step(f"compiling {path}", quiet):
        kernel = api.build(spec)
    if kernel.compiled.findings and not options.allow_spills:
        raise LaunchError(
            f"{kernel.signature.symbol}: {kernel.compiled.findings[0].message}; --allow-spills times it all the same"
        )
    extents = api.problem(spec)
    arrays = inputs.for_signature(kernel.signature, extents, 0, library="torch", inouts=reads_c(spec))
    with step("validating", quiet):
        report = kernel.validate(arrays, given_scalars(spec), sampled=16)
    flop, traffic = work_and_traffic(spec)
    outcome: dict[str, Any] = {
        "spec": str(path),
        "kernel": kernel.signature.symbol,
        "ok": report.ok,
        "report": report.to_dict(),
    }
    if not report.ok:
        if not quiet:
            print(f"{path}: {coloured('WRONG', '31')}: not timed\n{report}")
        return outcome
    rival, title = _RIVALS.get(type(spec), ("cublas", "cuBLAS"))
    if options.against not in (None, "library", rival):
        raise ToolchainError(f"{path}: is compared with {title}: --against {rival}")
    sets = timing.input_sets(int(traffic), kernel_l2())
    calls, rivals, against = [], [], bool(options.against)
    for index in range(sets):
        given = inputs.for_signature(kernel.signature, extents, index, library="torch", inouts=reads_c(spec))
        names = [t.name for t in kernel.signature.tensors if t.name in given]
        calls.append(kernel.prepare(*(given[n] for n in names), **given_scalars(spec)))
        try:
            if against:
                rivals.append(_rival(baselines, spec, given))
        except ToolchainError as error:
            if options.against != "library":
                raise
            against = False
            outcome["alone"] = str(error)
    candidates = {"cutegen": calls} | ({rival: rivals} if rivals else {})
    with step("timing", quiet):
        times = timing.compare(candidates, working_sets={n: int(traffic) * sets for n in candidates})
    for who, timed in times.items():
        outcome[who] = {
            "median_ms": timed.median_ms,
            "p20_ms": timed.p20_ms,
            "p80_ms": timed.p80_ms,
            "tflops": flop / timed.median_ms / 1e9,
            "gbps": traffic / timed.median_ms / 1e6,
        }
    if rivals:
        outcome["ratio"] = times[rival].median_ms / times["cutegen"].median_ms
    outcome["inputs"] = times["cutegen"].inputs
    if options.save:
        digest = hashlib.sha256(to_yaml(spec).encode()).hexdigest()
        results.write(Path(options.save), path.stem, digest, {**outcome, "spec": path.name, "spec_yaml": to_yaml(spec)})
    if not quiet:
        mine = outcome["cutegen"]
        print(
            f"{path.stem:<34} {mine['median_ms'] * 1e3:9.1f} us  {mine['tflops']:7.1f} TFLOP/s  {mine['gbps']:7.0f} GB/s"
            + (f"  {outcome['ratio']:.3f} x {title} ({outcome[rival]['median_ms'] * 1e3:.1f} us)" if rivals else "")
            + (f"  ({outcome['alone']})" if "alone" in outcome else "")
        )
    return outcome


def kernel_l2() -> int:
    """Bytes of the GPU's L2."""
    from cutegen.kernel.driver import driver

    return int(driver().device(0).l2_bytes)


def _fused(baselines: Any, text: str, arrays: dict[str, Any]) -> Any:
    """torch's call for an epilogue that it has.

    Raises:
        ToolchainError: it has none.
    """
    found = re.fullmatch(r"(gelu|relu|silu)\(alpha \* acc \+ bias\[n\]\)", text)
    if found is None:
        raise ToolchainError(f"no library has one call for `{text}`: bench without --against")
    return baselines.linear(arrays["a"], arrays["b"], arrays["bias"], found[1])[0]


def _rival(baselines: Any, spec: KernelSpec, arrays: dict[str, Any]) -> Any:
    from cutegen.dtypes import DTYPES

    d = spec.dtypes  # type: ignore[attr-defined]
    if isinstance(spec, GemmSpec):
        if spec.problem.groups is not None:
            return baselines.grouped(arrays["a"], arrays["b"], arrays["ends"])[0]
        rows = spec.scales.rows
        if spec.problem.pointers:
            if rows or spec.epilogue.out is not None:
                raise ToolchainError(
                    "no library call takes lists with scales or an expression: bench without --against"
                )
            return baselines.one_by_one(arrays["a"], arrays["b"], DTYPES[d.c], tf32=d.multiply == "tf32")[0]
        if spec.epilogue.out is not None:
            return _fused(baselines, spec.epilogue.out, arrays)
        scales = (arrays["scale_a"], arrays["scale_b"]) if len(rows) == 2 else None
        return baselines.gemm(arrays["a"], arrays["b"], DTYPES[d.c], tf32=d.multiply == "tf32", scales=scales)[0]
    if isinstance(spec, AttentionForwardSpec):
        if (
            spec.softcap is not None
            or spec.score is not None
            or spec.mask is not None
            or spec.sinks
            or spec.dropout
            or spec.varlen
            or spec.window != Window()
        ):
            raise ToolchainError(
                "torch's FLASH_ATTENTION has batches of one length, causal masks and no more: bench without --against"
            )
        return baselines.attention_forward(arrays["q"], arrays["k"], arrays["v"], causal=spec.causal)[0]
    scale = arrays["q"].shape[-1] ** -0.5
    return baselines.attention_scores(
        arrays["q"], arrays["k"], DTYPES[d.scores], scale=scale, tf32=d.multiply == "tf32"
    )[0]
