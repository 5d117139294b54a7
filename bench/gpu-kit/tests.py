"""Tests of the kit's computations, without a GPU: `python3 -m unittest tests` in this folder."""

import os
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import cases
import clock
import device_gate
import docker_rows
import facts
import kit
import private_host
import processes
import report
import results
import rows
import runtime_rows
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


class FakeContainer:
    """A container with this size of the GPU, without nvidia-smi unless `smi` is its output."""

    def __init__(self, total, smi=None, granted=4000 << 20):
        self.total, self.smi, self.granted = total, smi, granted

    def run(self, command, *_):
        if command == "nvidia-smi":
            code = 127 if self.smi is None else 0
            return processes.Finished(command, code, self.smi or "not found", "")
        text = '{"total": %d, "granted": %d}' % (self.total, self.granted)
        return processes.Finished(command, 0, text, "")


class FakeKit:
    """A kit on a simulated GPU, with only these programs on its PATH."""

    is_simulated, machine = True, {"free_mib": 16384}

    def __init__(self, path, **more):
        self.environment = {"PATH": str(path), **more}


class FakeRegistry(private_host.PrivateHost):
    """A host whose Docker refuses each pull with this message."""

    def __init__(self, message):
        self.message, self.no_registry, self.pulls = message, None, 0

    def docker(self, *_):
        self.pulls += 1
        return processes.Finished("docker", 1, "", self.message)


class Docker(unittest.TestCase):
    LIMIT = docker_rows.LIMIT_GIB << 30

    def test_container_with_the_limit_is_held(self):
        self.assertFalse(docker_rows.limit_inside(FakeContainer(self.LIMIT))["nvidia_smi"])
        smi = FakeContainer(self.LIMIT, f"{self.LIMIT >> 20}\n")
        self.assertTrue(docker_rows.limit_inside(smi)["nvidia_smi"])

    def test_other_size_or_other_memory_fails(self):
        for container in (
            FakeContainer(80 << 30),
            FakeContainer(self.LIMIT, "81920\n"),
            FakeContainer(self.LIMIT, granted=self.LIMIT + 1),
            FakeContainer(self.LIMIT, granted=64 << 20),
        ):
            with self.assertRaises(processes.Failed):
                docker_rows.limit_inside(container)

    def test_machine_that_lacks_something_is_told(self):
        def reason(path, user=0, **more):
            with mock.patch("os.geteuid", return_value=user):
                with self.assertRaises(processes.NotPossible) as raised:
                    private_host.needs_docker(FakeKit(path, **more))
            return str(raised.exception)

        with tempfile.TemporaryDirectory() as path:
            self.assertIn("root", reason(path, user=1000))
            self.assertEqual(reason(path), "dockerd is not installed")
            for name in ("dockerd", "docker", "unshare", "nsenter"):
                Path(path, name).touch(mode=0o755)
            self.assertIn("CGPU_SIM_GPUS", reason(path))
            real = mock.patch.object(FakeKit, "is_simulated", False)
            with real:
                self.assertIn("NVIDIA's container toolkit is not installed", reason(path))

    def test_missing_image_does_not_stop_other_pulls(self):
        for message, reason, pulls in (
            ("Error: a: manifest unknown", "the registry has no a: manifest unknown", 2),
            ("Get x: dial tcp: no such host", "images cannot be pulled: no such host", 1),
        ):
            host = FakeRegistry(message)
            with self.assertRaises(processes.NotPossible) as raised:
                host.pulled("a")
            self.assertEqual(str(raised.exception), reason)
            with self.assertRaises(processes.NotPossible):
                host.pulled("b")
            self.assertEqual(host.pulls, pulls)

    def test_glibc_that_a_library_needs_is_found(self):
        with tempfile.NamedTemporaryFile() as library:
            library.write(b"\0GLIBC_2.9\0GLIBC_2.17\0GLIBC_2.2.5\0")
            library.flush()
            self.assertEqual(private_host.needed_glibc(library.name), 17)


class Cases(unittest.TestCase):
    @staticmethod
    def raising(error):
        def run():
            raise error

        return run

    def test_row_fails_with_one_case_and_is_possible_with_one(self):
        bad = cases.tried(self.raising(processes.Failed("no")))
        lacking = cases.tried(self.raising(processes.NotPossible("none")))
        good = cases.tried(lambda: {"total": 1})
        self.assertEqual((good["result"], good["total"]), ("held", 1))
        self.assertFalse(cases.collected({"a": good, "b": bad, "c": lacking})["ok"])
        self.assertTrue(cases.collected({"a": good, "c": lacking})["ok"])
        with self.assertRaises(processes.NotPossible):
            cases.collected({"c": lacking})


class Runtimes(unittest.TestCase):
    def test_limit_needs_the_size_the_errors_and_memory_again(self):
        seen = {"total": 4 << 20, "granted": 3 << 20, "error": 2, "went_on": 0, "managed": 801}
        self.assertTrue(runtime_rows.has_limit(seen, 4))
        for key, other in (("total", 5), ("granted", 5 << 20), ("error", 0), ("went_on", 2)):
            self.assertFalse(runtime_rows.has_limit({**seen, key: other}, 4))

    def test_refusal_that_differs_with_the_shim_fails(self):
        plain = processes.Finished("client", 3, "", "cudaMemGetInfo answered 35")
        runtime_rows.refused_alike(plain, processes.Finished("cgpu", 3, "", "a\n" + plain.stderr))
        with self.assertRaises(processes.Failed):
            runtime_rows.refused_alike(plain, processes.Finished("cgpu", 3, "", "answered 999"))


class Facts(unittest.TestCase):
    TREE = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 575",
        "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
        "sys/devices/system/node/node0/cpulist": "0-71\n",
        "sys/devices/system/node/node1/cpulist": "\n",
        "etc/nvidia-container-runtime/config.toml": '[nvidia-container-runtime]\nmode = "cdi"\n',
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
        "etc/cdi/nvidia.yaml": "",
    }

    def test_tree_of_a_coherent_machine_is_told(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in self.TREE.items():
                file = Path(root, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            seen = facts.of_files(root)
        self.assertEqual(seen["module_kind"], "open")
        self.assertEqual(seen["hmm_disabled"], "N")
        self.assertEqual(seen["memory_only_nodes"], ["node1"])
        self.assertEqual(seen["toolkit_mode"], "cdi")
        self.assertEqual(seen["system"], "Ubuntu 24.04 LTS")
        self.assertEqual(seen["cdi"], ["nvidia.yaml"])

    def test_missing_facts_are_none(self):
        with tempfile.TemporaryDirectory() as root:
            seen = facts.of_files(root)
        for name in ("module", "module_kind", "hmm_disabled", "toolkit_mode", "kernel"):
            self.assertIsNone(seen[name])

    def test_xids_are_found_in_the_kernel_log(self):
        log = "[1] NVRM: loading\n[2] NVRM: Xid (PCI:0000:65:00): 31, pid=7, name=x\n[3] usb\n"
        self.assertEqual(facts.xids_in(log), ["NVRM: Xid (PCI:0000:65:00): 31, pid=7, name=x"])


class Reports(unittest.TestCase):
    HEAD = {
        "commit": "c",
        "scale": 1.0,
        "selection": ["a", "b"],
        "gpu": "GPU <1>",
        "uuid": "u",
        "driver": "580",
        "driver_kind": "real",
        "date": "d",
        "processors": 2,
    }
    HELD = {"result": "held", "figure": "1 < 2", "seconds": 1.0, "load": 4.25}
    FAILED = {"result": "FAILED", "error": "no", "seconds": 1.0}

    def run_of(self, folder, name, **changed):
        logs = Path(folder, f"logs-{name}")
        logs.mkdir()
        return results.Results(Path(folder), name, logs, {**self.HEAD, **changed})

    def test_run_goes_on_with_the_newest_unfinished_one(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.run_of(folder, "cgpu-gpu-kit-1")
            (first.logs / "a.out").write_text("of the first part")
            first.add("a", self.HELD)
            first.begin("b")
            for other in ({"gpu": "another"}, {"commit": "another"}, {"scale": 0.1}):
                name = "cgpu-gpu-kit-2-" + next(iter(other))
                self.assertEqual(self.run_of(folder, name, **other).go_on(), set())
            second = self.run_of(folder, "cgpu-gpu-kit-3")
            self.assertEqual(second.go_on(), {"a"})
            self.assertEqual((second.name, second.all["suspect"]), ("cgpu-gpu-kit-1", "b"))
            self.assertEqual((second.logs / "a.out").read_text(), "of the first part")
            second.add("b", self.FAILED)
            second.finish()
            self.assertEqual(self.run_of(folder, "cgpu-gpu-kit-4").go_on(), set())

    def test_stopped_row_is_not_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.run_of(folder, "cgpu-gpu-kit-1")
            first.add("a", kit.unfinished("stopped"))
            first.finish()
            self.assertFalse(first.all["finished"])
            self.assertEqual(self.run_of(folder, "cgpu-gpu-kit-2").go_on(), set())

    def test_page_escapes_text_and_begins_with_failures(self):
        done = {**self.HEAD, "finished": True, "rows": {"a": self.HELD, "b": self.FAILED}}
        page = report.page(done)
        self.assertIn("GPU &lt;1&gt;", page)
        self.assertNotIn("1 < 2", page)
        self.assertLess(page.index("<td>b<"), page.index("<td>a<"))
        self.assertIn("1 FAILED, 1 held, 0 measured, 0 not possible", page)
        self.assertIn("4.2 at most, 2 processors", page)


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
