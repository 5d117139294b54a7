"""Tests of the kit's computations, without a GPU: `python3 -m unittest tests` in this folder."""

import os
import random
import unittest
from unittest import mock

import clock
import device_gate
import kit
import rows
import tenants


def observations(ppm, seconds, seed, slew_ppm=0.0):
    """Returns the output of the program `clock` on a GPU whose clock is this much too fast."""
    draw = random.Random(seed)
    start, first, seen = 5_000_000_000_000, None, []
    for group in range(7):
        now = start + seconds * 1e9 * group / 6
        for _ in range(200):
            # A launch, the event, its notification; sometimes the host is delayed.
            taken = draw.uniform(4e3, 9e3)
            after = taken + draw.uniform(2e3, 5e3) + (draw.random() < 0.3) * draw.uniform(0, 1e6)
            gpu = round((now + taken) * (1 + ppm / 1e6) / 500) * 500
            first = gpu if first is None else first
            raw = [int(now), int(now + after)]
            monotonic = [int(time * (1 + slew_ppm / 1e6)) for time in raw]
            elapsed = float32((gpu - first) / 1e6)
            seen.append({"group": group, "raw": raw, "monotonic": monotonic, "gpu_ms": elapsed})
            now += after
    return seen


def float32(value):
    spacing = clock.spacing_ns(value) / 1e6
    return round(value / spacing) * spacing if spacing else 0.0


class Clock(unittest.TestCase):
    def test_rate_is_within_its_uncertainty(self):
        for seed, ppm in enumerate((0, 2, -2, 15, -50, 100, -100, 200, 500, -500)):
            for seconds, uncertainty in ((1, 20), (60, 0.5)):
                seen = clock.estimate(observations(ppm, seconds, seed))
                self.assertLess(abs(seen["ppm"] - ppm), seen["uncertainty_ppm"])
                self.assertLess(seen["uncertainty_ppm"], uncertainty)

    def test_slew_of_the_host_is_told_apart(self):
        seen = clock.estimate(observations(40, 60, 1, slew_ppm=80_000))
        self.assertLess(abs(seen["ppm"] - 40), seen["uncertainty_ppm"])
        self.assertAlmostEqual(seen["host_slew_ppm"], 80_000, delta=1)

    def test_spacing_is_that_of_32_bit_floats(self):
        self.assertEqual(clock.spacing_ns(60_000), 2**-8 * 1e6)
        self.assertEqual(clock.spacing_ns(0), 0)


class Shares(unittest.TestCase):
    def test_shares_follow_completed_work_over_its_own_time(self):
        one = [{"from": 0, "to": 2, "launches": 100}, {"from": 2, "to": 4, "launches": 100}]
        three = [{"from": 0.1, "to": 2.1, "launches": 300}]
        self.assertEqual(tenants.shares([one, three]), [25, 75])
        self.assertEqual(tenants.error_pct([30, 70], [25, 75]), 20)


class Latency(unittest.TestCase):
    def test_percentiles_are_of_the_ordered_times(self):
        seen = device_gate.percentiles(range(1000, 0, -1))
        self.assertEqual(seen, {"p50_us": 501, "p99_us": 991, "worst_us": 1000})
        self.assertEqual(device_gate.percentiles([7.0])["p99_us"], 7.0)


class Limits(unittest.TestCase):
    def test_no_run_takes_more_than_ten_minutes(self):
        for group in (rows.SHORT, rows.LONG, rows.GATE):
            self.assertLessEqual(kit.most_seconds(group), 600)

    def test_mount_without_exec_holds_no_programs(self):
        seen = os.statvfs("/")
        noexec = mock.Mock(f_bavail=1 << 30, f_frsize=4096, f_flag=seen.f_flag | os.ST_NOEXEC)
        with mock.patch("os.statvfs", return_value=noexec):
            self.assertTrue(kit.usable("/tmp"))
            self.assertFalse(kit.usable("/tmp", executable=True))


if __name__ == "__main__":
    unittest.main()
