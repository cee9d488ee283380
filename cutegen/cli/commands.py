"""What each command does. Every function takes the parsed options and returns the exit status."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from cutegen.cli import show
from cutegen.cli.progress import step
from cutegen.data import data_dir
from cutegen.errors import Fault, SpecError, ToolchainError
from cutegen.spec import KernelSpec
from cutegen.spec.base import nearest_name


def shipped() -> dict[str, Path]:
    """Shipped specs by name, `family/stem`."""
    root = data_dir("specs")
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def find(name: str) -> Path:
    """The file that a command's SPEC means: a path, or the name of a shipped spec.

    Raises:
        SpecError: neither; names the nearest shipped spec.
    """
    path = Path(name)
    if path.exists() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    known = shipped()
    if name in known:
        return known[name]
    by_stem = [found for found in known.values() if found.stem == name]
    if len(by_stem) == 1:
        return by_stem[0]
    raise SpecError(
        Fault("", "no such file, and no shipped spec of that name", got=name, hint=nearest_name(name, known))
    )


def _specs(options: Namespace) -> list[tuple[Path, KernelSpec]]:
    """Loads the specs and plans them, so that a plan's faults too come with file and line."""
    from cutegen.plan import plan
    from cutegen.spec.yaml import apply_overrides, build_spec, read

    found = []
    for path in map(find, options.spec):
        document = apply_overrides(read(path), options.overrides)
        spec = build_spec(document)
        try:
            plan(spec)
        except SpecError as error:
            raise error.located(document.source, [document.locate(fault) for fault in error.faults]) from None
        found.append((path, spec))
    return found


def emit(options: Namespace) -> int:
    from cutegen.api import emit as emit_source
    from cutegen.api import load, resolve

    if options.shipped == bool(options.spec):
        raise SpecError(Fault("", "name specs, or ask for all of them with --shipped"))
    if options.shipped:
        root = data_dir("specs")
        jobs = [
            (Path(options.output) / path.parent.relative_to(root), path.stem, load(path)) for path in shipped().values()
        ]
    else:
        jobs = [(Path(options.output), resolve(spec).symbol, spec) for _, spec in _specs(options)]
    sources = [(folder, stem, emit_source(spec)) for folder, stem, spec in jobs]
    for folder, stem, source in sources:
        if options.stdout:
            sys.stdout.write(source)
            continue
        target = folder / f"{stem}.cu"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(source, "utf-8")
        except OSError as error:
            raise SpecError(
                Fault("--output", f"can't write {target}: {(error.strerror or str(error)).lower()}")
            ) from None
        print(target)
    return 0


def check(options: Namespace) -> int:
    from cutegen.api import check as check_spec

    found = [(path, check_spec(spec)) for path, spec in _specs(options)]
    if options.json:
        print(json.dumps([{"spec": str(path), **result.to_dict()} for path, result in found], indent=2))
    else:
        for path, result in found:
            show.preflight(str(path), result)
    return 0


def compile(options: Namespace) -> int:
    from cutegen.api import compile as compile_spec

    results = []
    for path, spec in _specs(options):
        with step(f"compiling {path}", quiet=options.json):
            made = compile_spec(spec)
        results.append((path, made))
        if not options.json:
            show.binary(made)
    if options.json:
        print(json.dumps([show.binary_dict(str(path), made) for path, made in results], indent=2))
    return 0


def run(options: Namespace) -> int:
    from cutegen.cli.running import run_spec

    outcomes = [run_spec(path, spec, options) for path, spec in _specs(options)]
    if options.json:
        print(json.dumps(outcomes, indent=2))
    return 0 if all(outcome["ok"] is not False for outcome in outcomes) else 1


def bench(options: Namespace) -> int:
    from cutegen.cli.running import bench_spec

    outcomes = [bench_spec(path, spec, options) for path, spec in _specs(options)]
    if options.json:
        print(json.dumps(outcomes, indent=2))
    return 0 if all(outcome["ok"] for outcome in outcomes) else 1


def tune(options: Namespace) -> int:
    from cutegen.cli.tuning import tune_spec

    outcomes = [tune_spec(path, spec, options) for path, spec in _specs(options)]
    if options.json:
        print(json.dumps(outcomes, indent=2))
    return 0 if all(outcome["ok"] for outcome in outcomes) else 1


def specs(options: Namespace) -> int:
    from cutegen.api import load

    rows: list[dict[str, Any]] = []
    for name, path in shipped().items():
        spec = load(path)
        rows.append({"name": name, "arch": spec.arch, "description": spec.description or ""})
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            print(f"{row['name']:<{width}}  {row['arch']:<7} {row['description']}")
    return 0


def schema(options: Namespace) -> int:
    from cutegen.spec.schema import schema as schema_of

    print(json.dumps(schema_of(), indent=2))
    return 0


def cache(options: Namespace) -> int:
    from dataclasses import asdict

    from cutegen.binary import Cache

    found = Cache.default()
    if options.action == "clear":
        removed = found.clear()
        print(json.dumps({"removed": removed}) if options.json else f"removed {removed} kernels")
        return 0
    info = found.info()
    if options.json:
        print(json.dumps(asdict(info), indent=2))
    else:
        print(info.problem or f"{info.root}: {info.entries} kernels, {info.bytes / 1e6:.1f} MB")
    return 0


def doctor(options: Namespace) -> int:
    from dataclasses import asdict

    from cutegen.cli.doctor import checks

    found = checks()
    if options.json:
        print(json.dumps([asdict(item) for item in found], indent=2))
    else:
        show.doctor(found)
    return 0 if all(item.ok or item.optional for item in found) else ToolchainError.exit_status
