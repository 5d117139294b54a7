"""Computes the rate of the GPU's event clock against the host's, from the program `clock`.

An event lies between the two host readings of its observation. The tightest observation of a group
gives the clocks' offset, to within half its width; the offsets of two groups give the rate, and the
widths its uncertainty. The latency of a launch and its notification is the same at both ends and
cancels, so the true error is a fraction of the stated one.
"""

import math

# The documented resolution of cuEventElapsedTime; the two events of a difference are each rounded.
GRID_NS = 500.0
FLOAT32_BITS = 23


def spacing_ns(milliseconds):
    """Returns the distance of two neighbouring 32-bit floats at this many ms, in ns."""
    return (
        0.0
        if milliseconds == 0
        else 2.0 ** (math.floor(math.log2(abs(milliseconds))) - FLOAT32_BITS) * 1e6
    )


def tightest(observations, clock):
    """Returns host time, GPU time and half the width of a group's best observation, in ns."""
    best = min(observations, key=lambda seen: seen[clock][1] - seen[clock][0])
    before, after = best[clock]
    width = after - before
    return (
        before + width / 2,
        best["gpu_ms"] * 1e6,
        width / 2 + GRID_NS + spacing_ns(best["gpu_ms"]) / 2,
    )


def rate(first, last):
    """Returns how much faster the GPU's clock ran between two points, and its error, in ppm."""
    host = last[0] - first[0]
    return ((last[1] - first[1]) / host - 1) * 1e6, (first[2] + last[2]) / host * 1e6


def estimate(observations):
    """Returns the rate against both clocks, in all and by part, and the host's own slew."""
    groups = [
        [seen for seen in observations if seen["group"] == group]
        for group in range(observations[-1]["group"] + 1)
    ]
    raw = [tightest(group, "raw") for group in groups]
    monotonic = [tightest(group, "monotonic") for group in groups]
    ppm, uncertainty = rate(raw[0], raw[-1])
    ppm_monotonic, uncertainty_monotonic = rate(monotonic[0], monotonic[-1])
    return {
        "ppm": ppm,
        "uncertainty_ppm": uncertainty,
        "seconds": (raw[-1][0] - raw[0][0]) / 1e9,
        "half_width_us": [raw[0][2] / 1e3, raw[-1][2] / 1e3],
        "parts_ppm": [rate(*pair)[0] for pair in zip(raw, raw[1:])],
        "part_uncertainty_ppm": max(rate(*pair)[1] for pair in zip(raw, raw[1:])),
        "ppm_monotonic": ppm_monotonic,
        "uncertainty_monotonic_ppm": uncertainty_monotonic,
        # NTP slews CLOCK_MONOTONIC, never CLOCK_MONOTONIC_RAW.
        "host_slew_ppm": ((1 + ppm / 1e6) / (1 + ppm_monotonic / 1e6) - 1) * 1e6,
    }
