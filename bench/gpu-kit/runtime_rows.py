"""Rows about the CUDA runtime: a prebuilt client of each soname, and programs that nvcc builds."""

from pathlib import Path

import needs
from processes import Failed, NotPossible

SONAMES = ("11.0", "12", "13")
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801


def has_limit(seen, limit):
    """Returns whether a client got the limit, the usual errors, and memory again."""
    return (
        seen["total"] == limit << 20
        and seen["granted"] <= limit << 20
        and seen["error"] == OUT_OF_MEMORY
        and seen["went_on"] == 0
        and seen["managed"] == NOT_SUPPORTED
    )


def told(limit, results):
    granted = ", ".join(f"{title} {one['granted'] >> 20} MiB" for title, one in results.items())
    return f"limit {limit} MiB, granted {granted}"


def cudart(kit):
    """Programs of the CUDA runtime, static and shared, get the limit and the usual error."""
    needs.vendor_driver(kit, "the CUDA runtime")
    nvcc, limit, results = needs.tool(kit, "nvcc"), needs.limit_mib(kit), {}
    # The toolkit's libraries: programs that nvcc builds do not name their folder.
    places = [Path(nvcc).resolve().parent.parent / name for name in ("lib64", "lib")]
    given = kit.environment.get("LD_LIBRARY_PATH")
    variables = {"LD_LIBRARY_PATH": ":".join(filter(None, [*map(str, places), given]))}
    for kind in ("static", "shared"):
        binary = kit.scratch / f"runtime_fill_{kind}"
        built = kit.run(nvcc, f"--cudart={kind}", "-o", binary, kit.folder / "runtime_fill.c")
        if built.exit != 0:
            raise NotPossible(f"nvcc does not build the program: {built.reason()}")
        results[kind] = kit.limited(limit, binary, variables=variables).json()
    ok = all(has_limit(seen, limit) for seen in results.values())
    return {"ok": ok, "figure": told(limit, results), **results}


def refused_alike(plain, shim):
    """Raises unless a runtime refuses the driver with the shim as without."""
    if (shim.exit, shim.last_line()) != (plain.exit, plain.last_line()):
        raise Failed(f"without the shim {plain.reason()}, with it {shim.reason()}")


def prebuilt(soname):
    """Returns the row about this library's client, which the kit brings."""

    def row(kit):
        client = kit.file("clients") / f"runtime_fill-{soname}"
        if not client.exists():
            raise NotPossible(
                "the kit has no client of it: it was made without Python's package index"
            )
        plain = kit.run(client)
        if plain.exit != 0:
            refused_alike(plain, kit.unlimited(client))
            needs.vendor_driver(kit, f"libcudart.so.{soname} ({plain.last_line()})")
            raise NotPossible(f"without the shim: {plain.reason()}")
        limit = needs.limit_mib(kit)
        seen = kit.limited(limit, client).json()
        figure = f"version {seen['version']}, {told(limit, {'it': seen})}"
        return {"ok": has_limit(seen, limit), "figure": figure, **seen}

    row.__name__ = f"cudart_{soname.split('.')[0]}"
    row.__doc__ = f"A prebuilt client of libcudart.so.{soname} gets the limit and the usual error."
    return row


cudart_11, cudart_12, cudart_13 = map(prebuilt, SONAMES)
