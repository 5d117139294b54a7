//! Shares, hand-overs and faults of turns. They run serially, because each would disturb the
//! others' measurements.
//!
//! The bounds are wide: they tell a share from no share on a busy machine. Benchmarks measure how
//! exact shares are.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_e2e::{
    Child, Container, ControlGroups, Docker, Fixture, MIB, Monitor, Outcome, Worker, skip,
};
use serde_json::Value;

const SECONDS: f64 = 3.0;

const KERNEL_US: u32 = 60;

fn soaking() -> Option<f64> {
    std::env::var("CGPU_SOAK_SECONDS").ok()?.parse().ok()
}

struct Pair {
    fixture: Fixture,
    monitor: Option<Monitor>,
    containers: [Container; 2],
    workers: [Worker; 2],
}

impl Pair {
    fn start(weights: [u32; 2]) -> Self {
        Self::start_on(Fixture::new("A10:23028"), weights)
    }

    fn start_on(fixture: Fixture, weights: [u32; 2]) -> Self {
        Self::start_with_kernels(fixture, weights, KERNEL_US)
    }

    /// The first one's kernels take this long.
    fn start_with_kernels(fixture: Fixture, weights: [u32; 2], kernel_us: u32) -> Self {
        let monitor = Monitor::start(&fixture);
        let container = |name, weight| fixture.limited(name, 8192).with_weight(weight);
        let containers = [container("a", weights[0]), container("b", weights[1])];
        let workers = [
            Worker::start_with_kernels(&fixture, &containers[0], kernel_us),
            Worker::start(&fixture, &containers[1]),
        ];
        // A tenant that the monitor has not found shares with no other.
        containers.iter().for_each(|container| _ = fixture.accounting(container));
        Self { fixture, monitor: Some(monitor), containers, workers }
    }

    /// Launches on both for this long. Returns kernels per second of each.
    fn run(&mut self, seconds: f64) -> [f64; 2] {
        self.workers.iter_mut().for_each(|worker| worker.begin(seconds));
        let [a, b] = &mut self.workers;
        [a.rate(), b.rate()]
    }

    fn alone(&mut self, which: usize, seconds: f64) -> f64 {
        self.workers[which].begin(seconds);
        self.workers[which].rate()
    }

    fn finish(self) {
        self.workers.into_iter().for_each(Worker::finish);
    }
}

fn near(found: f64, wanted: f64, percent: f64) -> bool {
    (found - wanted).abs() <= wanted * percent / 100.0
}

/// Returns the ticks that the hypervisor stole and all ticks, of all processors (proc(5),
/// `/proc/stat`).
fn stolen_ticks() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    [ticks.get(7).copied().unwrap_or(0), ticks.iter().take(8).sum()]
}

/// Repeats a test that failed while the hypervisor stole at least a hundredth of the time, twice,
/// and then skips it with the figure.
fn undisturbed(name: &str, test: impl Fn()) {
    for attempt in 1.. {
        let before = stolen_ticks();
        let Err(failure) = catch_unwind(AssertUnwindSafe(&test)) else { return };
        let after = stolen_ticks();
        let (lost, all) = (after[0] - before[0], (after[1] - before[1]).max(1));
        if lost * 100 < all {
            resume_unwind(failure);
        }
        eprintln!("{name}: {lost} of {all} ticks of the processors were taken away");
        if attempt == 3 {
            return skip(
                name,
                "undisturbed",
                "the machine below this one took processor time away",
            );
        }
        thread::sleep(Duration::from_secs(10));
    }
}

#[test]
fn shares_follow_the_weights() {
    undisturbed("shares_follow_the_weights", || {
        let mut pair = Pair::start([1, 2]);
        let alone = pair.alone(0, SECONDS);
        let [a, b] = pair.run(2.0 * SECONDS);
        assert!(near(b / a, 2.0, 15.0), "1:2 came out as 1:{:.2}", b / a);
        assert!(a + b > 0.85 * alone, "together {:.0}/s, alone {alone:.0}/s", a + b);
        pair.finish();
    });
}

#[test]
fn shares_follow_the_weights_in_limited_control_groups() {
    follow_in_limited_groups("shares_follow_the_weights_in_limited_control_groups", "dmem");
}

#[test]
fn shares_follow_the_weights_in_groups_that_the_driver_lists() {
    follow_in_limited_groups("shares_follow_the_weights_in_groups_that_the_driver_lists", "misc");
}

/// The driver limits the control group of each container.
fn follow_in_limited_groups(test: &str, back_end: &'static str) {
    let groups = match ControlGroups::mount(test) {
        Ok(groups) => groups,
        Err(reason) => return skip(test, "cgroups", &reason),
    };
    let caller = groups.create("caller");
    undisturbed(test, || {
        let fixture = Fixture::new("A10:23028").walled(back_end);
        let _monitor = Monitor::start(&fixture);
        let mut workers = [("a", "1"), ("b", "2")].map(|(name, weight)| {
            let mut run = fixture.cgpu(&["run", "--root", &fixture.root().to_string_lossy()]);
            run.args(["--wall", "required", "--mem", "8GiB", "--weight", weight]);
            run.args(["--name", name, "--"]).arg(fixture.dist().program("worker"));
            ControlGroups::start_in(&mut run, &caller);
            Worker::start_command(&fixture, run)
        });
        let mut rates = |seconds, which: &[usize]| {
            which.iter().for_each(|&at| workers[at].begin(seconds));
            which.iter().map(|&at| workers[at].rate()).collect::<Vec<f64>>()
        };
        let alone = rates(SECONDS, &[0])[0];
        let both = rates(2.0 * SECONDS, &[0, 1]);
        let containers = fixture.smi()["containers"].clone();
        for container in containers.as_array().expect("containers") {
            assert_eq!(container["gpus"][0]["wall"]["state"], "driver", "{container:#}");
        }
        let (ratio, sum) = (both[1] / both[0], both[0] + both[1]);
        assert!(near(ratio, 2.0, 15.0), "{back_end}: 1:2 came out as 1:{ratio:.2}");
        assert!(sum > 0.85 * alone, "{back_end}: together {sum:.0}/s, alone {alone:.0}/s");
        eprintln!("{back_end}: 1:{ratio:.3}, together {sum:.0}/s, alone {alone:.0}/s");
        workers.into_iter().for_each(Worker::finish);
    });
}

/// The GPU's clock is half a millisecond a second slow; durations measured by its events are
/// unaffected.
#[test]
fn shares_follow_the_weights_on_a_gpu_with_a_slow_clock() {
    undisturbed("shares_follow_the_weights_on_a_gpu_with_a_slow_clock", || {
        let mut pair = Pair::start_on(Fixture::new("A10:23028").drifting(-500), [1, 3]);
        let [a, b] = pair.run(2.0 * SECONDS);
        let smi = pair.fixture.smi();
        assert!(near(b / a, 3.0, 15.0), "1:3 came out as 1:{:.2}: {smi}", b / a);
        let clamped = |container: &Value| container["counters"]["length_clamped"].as_u64();
        let containers = smi["containers"].as_array().expect("containers");
        assert!(containers.iter().all(|container| clamped(container).unwrap_or(0) == 0), "{smi}");
        pair.finish();
    });
}

/// Two containers of a Docker daemon in windows of two seconds. A short disturbance does not move
/// the median of their ratios.
#[test]
fn two_docker_containers_share_one_to_two() {
    undisturbed("two_docker_containers_share_one_to_two", || {
        let gpus = "A10:23028";
        let fixture = Fixture::new(gpus);
        let Some(docker) = Docker::start("two_docker_containers_share_one_to_two", &fixture, gpus)
        else {
            return;
        };
        let _ = std::os::unix::fs::symlink(
            fixture.root().join("gpus").join(gpus),
            fixture.path("gpus"),
        );
        let mut workers = [("one", 1), ("two", 2)].map(|(name, weight)| {
            let line = format!(
                "docker run -d --name {name} -e ALIYUN_COM_GPU_MEM_CONTAINER=8 -e ALIYUN_COM_GPU_MEM_DEV=23 \
                 -e ALIYUN_COM_GPU_SCHD_WEIGHT={weight} IMAGE"
            );
            docker.line(&line).exits(0);
            name
        })
        .map(|name| docker.spawn(&["exec", "-i", name, "worker"]));
        let _monitor = Monitor::start(&fixture);
        for worker in &mut workers {
            assert_eq!(worker.line(), "{\"ready\": true}");
        }
        fixture.eventually("the monitor knows both", || {
            (fixture.smi()["containers"].as_array()?.len() == 2).then_some(())
        });
        // A weight above 1 selects the policy of weights at the first turn after it was read.
        fixture.eventually("weights count", || {
            (fixture.smi()["gpus"][0]["policy"] == 2).then_some(())
        });
        let mut ratios: Vec<f64> = (0..7)
            .map(|_| {
                workers.iter_mut().for_each(|worker| worker.write("run 2\n"));
                let [one, two] = &mut workers;
                let rate = |worker: &mut Child| {
                    let printed: Value = serde_json::from_str(&worker.line()).expect("JSON");
                    printed["launches"].as_f64().expect("launches")
                        / printed["seconds"].as_f64().expect("seconds")
                };
                let (one, two) = (rate(one), rate(two));
                two / one
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        eprintln!("1:2 in windows of 2 s: {ratios:.3?}");
        assert!(near(ratios[3], 2.0, 2.0), "1:2 came out as {ratios:.3?}");
    });
}

/// A GPU that is five times slower, with a shim and a monitor that know it: the same shares of a
/// fifth of the work.
#[test]
fn shares_follow_the_weights_on_a_slow_gpu() {
    undisturbed("shares_follow_the_weights_on_a_slow_gpu", || {
        let mut real = Pair::start([1, 2]);
        let alone_on_a_real_one = real.alone(0, SECONDS);
        real.finish();
        let mut pair = Pair::start_on(Fixture::new("A10:23028").slowed(5), [1, 2]);
        let alone = pair.alone(0, SECONDS);
        assert!(
            near(5.0 * alone, alone_on_a_real_one, 15.0),
            "{alone:.0}/s and {alone_on_a_real_one:.0}/s"
        );
        let [a, b] = pair.run(3.0 * SECONDS);
        assert!(near(b / a, 2.0, 15.0), "1:2 came out as 1:{:.2}", b / a);
        assert!(a + b > 0.85 * alone, "together {:.0}/s, alone {alone:.0}/s", a + b);
        pair.finish();
    });
}

#[test]
fn demo_exit_code_matches_its_figures() {
    undisturbed("demo_exit_code_matches_its_figures", || {
        let fixture = Fixture::new("A10:23028");
        let mut command = fixture.native(&fixture.dist().file("cgpu-demo"));
        command.args(["--json", "--sim", "A10:23028", "--dist"]).arg(fixture.dist().folder());
        let outcome = Outcome::of(command);
        let printed: Value = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        assert_eq!(
            (&printed["driver"], &printed["build"]),
            (&"simulated".into(), &"unoptimized".into())
        );
        assert_eq!(printed["oom_enforced"], true);
        assert_eq!(printed["managed_refused"], true);
        let limits: Vec<u64> =
            (0..2).filter_map(|tenant| printed["tenants"][tenant]["limit_mib"].as_u64()).collect();
        assert_eq!(limits, [23028 * 8 / 22, 23028 * 12 / 22]);
        let number =
            |key: &str| printed[key].as_f64().unwrap_or_else(|| panic!("no {key} in {printed}"));
        // The test checks that the exit code agrees with the figures, not how exact they are on a
        // busy machine.
        let rounds = printed["aggregate_pct_rounds"].as_array().expect("the rounds");
        let possible =
            rounds.iter().all(|round| round.as_f64().is_some_and(|percent| percent <= 100.3));
        let held = number("share_error_pct") <= 2.0 && number("aggregate_pct") >= 90.0 && possible;
        assert_eq!(number("aggregate_bound_pct"), 90.0, "of an unoptimized build");
        assert_eq!(outcome.code(), Some(i32::from(!held)), "{printed}");
    });
}

#[test]
fn changed_weight_applies_under_load() {
    undisturbed("changed_weight_applies_under_load", || {
        let mut pair = Pair::start([2, 2]);
        let [a, b] = pair.run(SECONDS);
        assert!(near(b / a, 1.0, 15.0), "1:1 came out as 1:{:.2}", b / a);
        let id =
            pair.fixture.accounting(&pair.containers[1])["id"].as_str().expect("an id").to_owned();
        pair.fixture.set(&format!("0/{id}/weight"), "6");
        let [a, b] = pair.run(2.0 * SECONDS);
        assert!(near(b / a, 3.0, 15.0), "1:3 came out as 1:{:.2}", b / a);
        pair.finish();
    });
}

#[test]
fn policy_1_redistributes_idle_shares() {
    undisturbed("policy_1_redistributes_idle_shares", || {
        let mut pair = Pair::start([1, 1]);
        pair.fixture.set("0/policy", "1");
        let together = pair.run(SECONDS)[0];
        let alone = pair.alone(0, SECONDS);
        assert!(alone > 1.7 * together, "alone {alone:.0}/s, together {together:.0}/s");
        pair.finish();
    });
}

/// On a real GPU a tenant gets every other slice beside others. That is not asserted, because the
/// GPU, both programs and the monitor share a few processors here.
#[test]
fn policy_1_gives_each_request_its_own_turn() {
    undisturbed("policy_1_gives_each_request_its_own_turn", || {
        let mut pair = Pair::start([1, 1]);
        pair.fixture.set("0/policy", "1");
        let turns = |pair: &Pair| {
            let accounting = pair.fixture.accounting(&pair.containers[0]);
            accounting["gpus"][0]["turns"]
                .as_f64()
                .unwrap_or_else(|| panic!("no turns in {accounting:#}"))
        };
        let before = turns(&pair);
        let [server, other] = &mut pair.workers;
        other.begin(SECONDS);
        let served = server.request(&format!("serve {}", SECONDS * 0.9));
        other.done();
        let (requests, had) =
            (served["requests"].as_f64().expect("a number"), turns(&pair) - before);
        assert!(requests > 30.0 && had > requests / 2.0, "{had} turns for {requests} requests");
        pair.finish();
    });
}

#[test]
fn policy_5_gates_no_tenant() {
    undisturbed("policy_5_gates_no_tenant", || {
        let mut pair = Pair::start([1, 4]);
        pair.fixture.set("0/policy", "5");
        let [a, b] = pair.run(SECONDS);
        assert!(near(b / a, 1.0, 20.0), "natively 1:1, came out as 1:{:.2}", b / a);
        pair.finish();
    });
}

#[test]
fn fixed_shares_hold_alone_and_beside_others() {
    undisturbed("fixed_shares_hold_alone_and_beside_others", || {
        let mut pair = Pair::start([6, 10]);
        pair.fixture.set("0/policy", "5");
        let alone = pair.alone(0, SECONDS);
        pair.fixture.set("0/policy", "3");
        for part in [pair.alone(0, SECONDS) / alone, pair.run(SECONDS)[0] / alone] {
            assert!(
                near(part, 6.0 / 20.0, 15.0),
                "6 of 20 places came out as {:.1} %",
                part * 100.0
            );
        }
        let part = pair.run(SECONDS)[1] / alone;
        assert!(near(part, 10.0 / 20.0, 15.0), "10 of 20 places came out as {:.1} %", part * 100.0);
        pair.fixture.set("0/policy", "0");
        let part = pair.alone(1, SECONDS) / alone;
        assert!(near(part, 1.0 / 20.0, 30.0), "one of 20 places came out as {:.1} %", part * 100.0);
        pair.finish();
    });
}

#[test]
fn soft_turns_are_equal_and_use_the_whole_gpu() {
    undisturbed("soft_turns_are_equal_and_use_the_whole_gpu", || {
        let mut pair = Pair::start([1, 3]);
        // The rate without sharing.
        pair.fixture.set("0/policy", "5");
        let alone = pair.alone(0, SECONDS);
        pair.fixture.set("0/policy", "4");
        let [a, b] = pair.run(SECONDS);
        assert!(near(b / a, 1.0, 15.0), "1:1 came out as 1:{:.2}", b / a);
        assert!(a + b > 0.85 * alone, "together {:.0}/s, alone {alone:.0}/s", a + b);
        pair.finish();
    });
}

#[test]
fn high_priority_takes_its_ratio_and_yields_when_idle() {
    undisturbed("high_priority_takes_its_ratio_and_yields_when_idle", || {
        for policy in ["1", "5"] {
            let mut pair = Pair::start([1, 1]);
            let alone = pair.alone(0, SECONDS);
            pair.fixture.set("0/policy", policy);
            pair.fixture.set("0/prio_ratio", "75");
            let id = pair.fixture.accounting(&pair.containers[1])["id"]
                .as_str()
                .expect("an id")
                .to_owned();
            pair.fixture.set(&format!("0/{id}/highprio"), "1");
            let [a, b] = pair.run(2.0 * SECONDS);
            assert!(near(b / (a + b), 0.75, 10.0), "policy {policy}: {:.1} %", b * 100.0 / (a + b));
            assert!(a + b > 0.85 * alone, "together {:.0}/s, alone {alone:.0}/s", a + b);
            let idle = pair.alone(0, SECONDS);
            assert!(
                idle > 0.85 * alone,
                "{idle:.0}/s beside an idle one of high priority, alone {alone:.0}/s"
            );
            pair.finish();
        }
    });
}

/// No launch is lost and no tenant hangs. `cargo xtask soak` runs it for a minute.
#[test]
fn policies_change_every_100_ms_under_load() {
    undisturbed("policies_change_every_100_ms_under_load", || {
        let seconds = soaking().unwrap_or(4.0 * SECONDS);
        let fixture = Fixture::new("A10:23028").with_extra_time(Duration::from_secs_f64(seconds));
        let mut pair = Pair::start_on(fixture, [1, 2]);
        let programs = pair.workers.each_mut().map(|worker| worker.request("info")["pid"].clone());
        let before = programs.each_ref().map(|program| worked(&pair.fixture, program));
        pair.workers.iter_mut().for_each(|worker| worker.begin(seconds));
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        for policy in (0..6).cycle() {
            pair.fixture.set("0/policy", &policy.to_string());
            thread::sleep(Duration::from_millis(100));
            if Instant::now() > end {
                break;
            }
        }
        for ((worker, program), before) in pair.workers.iter_mut().zip(&programs).zip(before) {
            let [launches, _] = worker.done();
            let micros = worked(&pair.fixture, program) - before;
            assert!(
                launches > 0.0 && micros >= launches * f64::from(KERNEL_US),
                "{launches} kernels of {KERNEL_US} us in {micros} us of the GPU"
            );
        }
        pair.fixture.set("0/policy", "2");
        pair.run(SECONDS);
        let [a, b] = pair.run(2.0 * SECONDS);
        assert!(near(b / a, 2.0, 15.0), "1:2 came out as 1:{:.2}", b / a);
        pair.finish();
    });
}

fn worked(fixture: &Fixture, program: &Value) -> f64 {
    let mut status = fixture.native(&fixture.dist().file("cgpu-sim"));
    status.args(["status", "--json"]);
    let reported = Outcome::of(status).silent().json();
    let all = reported["gpus"][0]["processes"].as_array().expect("processes");
    let its = all.iter().filter(|one| one["pid"] == *program);
    its.filter_map(|one| one["busy_ns"].as_f64()).sum::<f64>() / 1e3
}

#[test]
fn killed_or_stopped_tenant_does_not_block_the_gpu() {
    undisturbed("killed_or_stopped_tenant_does_not_block_the_gpu", || {
        for signal in [libc::SIGKILL, libc::SIGSTOP] {
            let mut pair = Pair::start([1, 1]);
            let alone = pair.alone(0, SECONDS);
            pair.workers.iter_mut().for_each(|worker| worker.begin(2.0 * SECONDS));
            thread::sleep(Duration::from_secs_f64(SECONDS / 2.0));
            pair.workers[1].process.signal(signal);
            let left = pair.workers[0].rate();
            assert!(left > 0.6 * alone, "signal {signal}: {left:.0}/s, alone {alone:.0}/s");
            let [a, _] = pair.workers;
            a.finish();
        }
    });
}

#[test]
fn tenant_without_its_monitor_runs_within_its_limit() {
    undisturbed("tenant_without_its_monitor_runs_within_its_limit", || {
        for signal in [libc::SIGKILL, libc::SIGSTOP] {
            let mut pair = Pair::start([1, 1]);
            pair.workers.iter_mut().for_each(|worker| worker.begin(2.0 * SECONDS));
            thread::sleep(Duration::from_secs_f64(SECONDS / 2.0));
            let monitor = pair.monitor.take().expect("it was started");
            monitor.process.signal(signal);
            for worker in &mut pair.workers {
                assert!(worker.rate() > 0.0);
            }
            // The monitor is stale, so the gates are open.
            let [a, b] = pair.run(SECONDS);
            assert!(near(b / a, 1.0, 25.0), "signal {signal}: 1:{:.2}", b / a);
            for worker in &mut pair.workers {
                let filled = worker.request("fill");
                assert_eq!(filled["result"], 2);
                assert!(filled["granted"].as_u64().expect("bytes") <= 8192 * MIB);
                worker.request("free");
            }
            drop(monitor);
            pair.finish();
        }
    });
}

#[test]
fn new_monitor_takes_over_running_tenants() {
    undisturbed("new_monitor_takes_over_running_tenants", || {
        let mut pair = Pair::start([1, 2]);
        pair.workers.iter_mut().for_each(|worker| worker.begin(2.0 * SECONDS));
        thread::sleep(Duration::from_secs_f64(SECONDS / 2.0));
        drop(pair.monitor.take());
        pair.monitor = Some(Monitor::start(&pair.fixture));
        for worker in &mut pair.workers {
            assert!(worker.rate() > 0.0);
        }
        let [a, b] = pair.run(2.0 * SECONDS);
        assert!(near(b / a, 2.0, 15.0), "1:2 came out as 1:{:.2}", b / a);
        pair.finish();
    });
}

#[test]
fn corrupted_region_affects_only_its_own_container() {
    undisturbed("corrupted_region_affects_only_its_own_container", || {
        let patterns: [fn(u64) -> u64; 3] =
            [|_| 0, |_| u64::MAX, |n| n.wrapping_mul(6_364_136_223_846_793_005)];
        for pattern in patterns {
            let mut pair = Pair::start([1, 1]);
            let [_, fair] = pair.run(SECONDS);
            let limit = pair.fixture.accounting(&pair.containers[1])["gpus"][0]["limit"].clone();

            pair.workers.iter_mut().for_each(|worker| worker.begin(2.0 * SECONDS));
            let file = OpenOptions::new()
                .write(true)
                .open(pair.containers[0].file("use"))
                .expect("the region");
            let length = file.metadata().expect("its length").len();
            let end = Instant::now() + Duration::from_secs_f64(SECONDS);
            let mut seed = 1;
            while Instant::now() < end {
                let page: Vec<u8> =
                    (0..512_u64).flat_map(|word| pattern(seed ^ word).to_ne_bytes()).collect();
                // With the header: the tenant can write everything but the file's size.
                let at = seed.wrapping_mul(4096) % length;
                file.write_all_at(
                    &page[..page.len().min(usize::try_from(length - at).expect("small"))],
                    at,
                )
                .expect("a write");
                seed = seed.wrapping_add(1);
                thread::sleep(Duration::from_micros(200));
            }
            let kept = pair.workers[1].rate();
            assert!(kept > 0.8 * fair, "the neighbour had {fair:.0}/s and has {kept:.0}/s");
            let monitor = pair.monitor.as_mut().expect("it was started");
            assert!(monitor.process.runs(), "the monitor has ended");
            assert_eq!(pair.fixture.accounting(&pair.containers[1])["gpus"][0]["limit"], limit);
            // The container may have broken its own program.
            let [a, b] = pair.workers;
            drop(a);
            b.finish();
        }
    });
}

/// Writes zeros to parts of a container's file, each with offset and length, until this is dropped.
struct Forger(Option<(Sender<()>, thread::JoinHandle<()>)>);

impl Forger {
    fn start(container: &Container, parts: Vec<(u64, usize)>) -> Self {
        let file = OpenOptions::new().write(true).open(container.file("use")).expect("the region");
        let (held, ends) = channel();
        let thread = thread::spawn(move || {
            while ends.try_recv() != Err(TryRecvError::Disconnected) {
                for (at, length) in &parts {
                    file.write_all_at(&[0; 8][..*length], *at).expect("a write");
                }
                thread::sleep(Duration::from_micros(20));
            }
        });
        Self(Some((held, thread)))
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        if let Some((held, thread)) = self.0.take() {
            drop(held);
            let _ = thread.join();
        }
    }
}

/// Its kernels ran beside the other one's turns, which had half of its share.
#[test]
fn container_that_hides_long_kernels_pays_for_them() {
    // What the first four processes have in flight.
    let (cells, cell, fields) = (69_632, 256, [72, 248]);
    let parts = (0..4).flat_map(|slot| fields.map(|field| cells + slot * cell + field));
    let parts: Vec<(u64, usize)> = parts.map(|at| (at, 8)).collect();
    undisturbed("container_that_hides_long_kernels_pays_for_them", || {
        let fixture = Fixture::new("A10:23028");
        let mut pair = Pair::start_with_kernels(fixture, [1, 1], 12_000);
        let [_, fair] = pair.run(SECONDS);
        let forger = Forger::start(&pair.containers[0], parts.clone());
        // The audit compares whole seconds.
        pair.run(2.0 * SECONDS);
        let [_, kept] = pair.run(3.0 * SECONDS);
        let gpu = &pair.fixture.accounting(&pair.containers[0])["gpus"][0];
        let found = gpu["anomalies"]["hidden"].as_u64().expect("a number");
        drop(forger);
        let rates = format!("the neighbour had {fair:.0}/s and has {kept:.0}/s");
        assert!(found > 0, "no audit has found it; {rates}");
        assert!(kept > 0.85 * fair, "{rates}");
        pair.finish();
    });
}

/// The monitor forgot the GPU and gave no more turns, so the container's programs waited for ever.
#[test]
fn container_that_erases_its_gpu_keeps_its_gate() {
    undisturbed("container_that_erases_its_gpu_keeps_its_gate", || {
        let fixture = Fixture::new("A10:23028");
        let mut pair = Pair::start_with_kernels(fixture, [1, 4], 3_000);
        let forger = Forger::start(&pair.containers[0], vec![(16, 4)]);
        let [_, kept] = pair.run(2.0 * SECONDS);
        drop(forger);
        let fair = 0.8 * pair.alone(1, SECONDS);
        assert!(kept > 0.85 * fair, "the neighbour should have {fair:.0}/s and had {kept:.0}/s");
        pair.finish();
    });
}
