//! The driver's own memory limit for a container's control group: attacks on the shim with and
//! without it, on both simulated back ends, in groups of version 2 that the runtime has made.

use super::shares::{bundle_of_shares, prepare_share, uuids};
use super::*;

with_each_runtime! {
    containers_leave_no_limit_of_the_driver
    container_that_is_deleted_takes_no_memory_beyond_its_limit
    variables_of_the_vendors_limits_are_not_in_the_container
    required_limit_that_the_driver_does_not_hold_starts_no_container
    margin_that_cannot_apply_starts_no_container
    limit_of_a_share_is_there_before_its_first_process
}

mod steps {
    use std::time::Instant;

    use cgpu_e2e::{ControlGroups, install, skip};

    use super::*;

    const A10: &str = "A10:23028";
    const WALLS: [&str; 2] = ["dmem", "misc"];
    /// 6/22 and 8/22 of the GPU.
    const ATTACKER: &[&str] = &["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=22"];
    const NEIGHBOUR: &[&str] = &["ALIYUN_COM_GPU_MEM_CONTAINER=8", "ALIYUN_COM_GPU_MEM_DEV=22"];
    /// The image asks for another limit of the driver.
    const OTHER_LIMIT: [&str; 2] =
        ["NVIDIA_GPU_MEMORY_LIMIT=22Gi", "NVIDIA_GPU_MEMORY_REQUEST=22Gi"];
    /// The attacker's limit.
    const LIMIT: u64 = 23028 * 6 / 22;
    const MARGIN: u64 = 512;

    /// Returns what a container of this many processes may take: one margin for the largest, one
    /// for a process that starts, and a quarter for each other.
    fn bound(processes: usize) -> u64 {
        LIMIT + 2 * MARGIN + (processes as u64 - 1) * MARGIN / 4
    }

    fn groups(test: &str) -> Option<ControlGroups> {
        // SAFETY: no obligations; geteuid cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            skip(test, "root", "only root sets the driver's limits");
            return None;
        }
        ControlGroups::mount_for_engines(&test.replace("::", "-"))
            .inspect_err(|reason| skip(test, "cgroups", reason))
            .ok()
    }

    fn monitor(fixture: &Fixture, wall: &str) -> Monitor {
        Monitor::start_with(fixture, &format!("tree = \"none\"\nwall = \"{wall}\"\n"))
    }

    fn shown(fixture: &Fixture, id: &str) -> Value {
        fixture.eventually("the container", || {
            let smi = fixture.smi();
            let mut all = smi["containers"].as_array()?.iter();
            let found = all.find(|one| one["id"] == id)?;
            found["gpus"].get(0).map(|gpu| gpu["wall"].clone())
        })
    }

    /// Waits until the monitor's NVML is open: until this holds of a container's wall.
    fn await_answer(oci: &OciHost<'_>, fixture: &Fixture, is_it: impl Fn(&Value) -> bool) {
        let container = oci.start("first", NEIGHBOUR);
        fixture.eventually("the wall", || is_it(&shown(fixture, "first")).then_some(()));
        container.delete();
    }

    /// Starts the attacker, whose image can be changed, with what its attacks need.
    fn attacker<'a>(oci: &'a OciHost<'_>, fixture: &Fixture, more: &[&str]) -> OciContainer<'a> {
        attacker_named("attacker", oci, fixture, more)
    }

    fn attacker_named<'a>(
        id: &str,
        oci: &'a OciHost<'_>,
        fixture: &Fixture,
        more: &[&str],
    ) -> OciContainer<'a> {
        let bundle = oci.bundle(id, &[ATTACKER, more].concat(), &["sleep", "600"]);
        let rootfs = bundle.join("rootfs");
        let tools = ["mv", "mkdir", "rm"].map(|name| cgpu_e2e::find(name).expect("coreutils"));
        install(&rootfs, &[&tools[..], &[fixture.dist().program("rewind")]].concat());
        add_foreign_loader(&rootfs);
        change(&bundle, |config| {
            config["root"]["readonly"] = false.into();
            for kind in ["bounding", "effective", "permitted"] {
                let list = config["process"]["capabilities"][kind].as_array_mut();
                list.expect("capabilities").push("CAP_SETFCAP".into());
            }
        });
        oci.start_bundle(id, &bundle)
    }

    /// What an attack got.
    #[derive(Debug)]
    struct Taken {
        /// MiB of all its processes on the GPU, contexts included.
        mib: u64,
        neighbour_got_its_memory: bool,
    }

    /// Attacks with as many processes of `rewind` as commands. A command says REWIND for it.
    fn attack(test: &str, back_end: &'static str, wall: &str, commands: &[&str]) -> Option<Taken> {
        let fixture = Fixture::new(A10).walled(back_end);
        let oci = OciHost::open(test, &fixture, Runtime::Crun, A10)?;
        let _monitor = monitor(&fixture, wall);
        let attacker = attacker(&oci, &fixture, &OTHER_LIMIT);
        // NVML may not be open yet when the container is registered.
        let expected = if wall == "off" { "shim" } else { "driver" };
        fixture.eventually("the wall", || {
            (shown(&fixture, "attacker")["state"] == expected).then_some(())
        });
        let rewind = "/bin/rewind 64M /run/cgpu/use /tmp/go 240";
        let start = |command: &&str| {
            let text = format!("exec {}", command.replace("REWIND", rewind));
            attacker.spawn(&["sh", "-c", &text])
        };
        let mut processes: Vec<Child> = commands.iter().map(start).collect();
        let report = |process: &mut Child| {
            let line: Value = serde_json::from_str(&process.line()).expect("its report");
            line["held"].as_u64().expect("a number of bytes") / MIB
        };
        processes.iter_mut().for_each(|process| assert_eq!(report(process), 0));
        attacker.exec(&["sh", "-c", "echo > /tmp/go"]).exits(0);
        processes.iter_mut().for_each(|process| assert_eq!(report(process), 0));
        attacker.exec(&["rm", "/tmp/go"]).exits(0);
        let held: u64 = processes.iter_mut().map(report).sum();
        let mib = fixture.on_gpu() / MIB;
        assert!(mib >= held && held > 0, "{held} of {mib} MiB");
        if wall != "off" {
            let shown = shown(&fixture, "attacker");
            let hard = shown["hard"].as_u64().map(|bytes| bytes / MIB);
            assert!(hard <= Some(bound(commands.len())) && hard >= Some(LIMIT), "{shown}");
        }
        let neighbour = oci.start("neighbour", NEIGHBOUR);
        let got = neighbour.exec(&["hold", "8000M", "1"]);
        drop(processes);
        neighbour.delete();
        attacker.delete();
        is_clean(&fixture);
        Some(Taken { mib, neighbour_got_its_memory: got.code() == Some(0) })
    }

    /// Runs an attack without the wall, which must succeed, and with it, on both back ends.
    fn is_stopped(test: &str, commands: &[&str]) {
        let Some(_groups) = groups(test) else { return };
        for back_end in WALLS {
            let run = |wall| attack(test, back_end, wall, commands);
            let (Some(without), Some(with)) = (run("off"), run("auto")) else { return };
            println!("{back_end}, limit {LIMIT} MiB: without {without:?}, with {with:?}");
            let bound = bound(commands.len());
            assert!(without.mib > bound + 1024, "{back_end}: no attack: {without:?}");
            assert!(!without.neighbour_got_its_memory, "{back_end}: no attack: {without:?}");
            assert!(with.mib <= bound, "{back_end}: {with:?}, at most {bound} MiB");
            assert!(with.neighbour_got_its_memory, "{back_end}: {with:?}");
        }
    }

    #[test]
    fn wall_stops_processes_that_rewind_their_region_together() {
        is_stopped("wall_stops_processes_that_rewind_their_region_together", &["REWIND"; 3]);
    }

    #[test]
    fn wall_stops_a_program_without_the_shim() {
        let test = "wall_stops_a_program_without_the_shim";
        is_stopped(test, &["sh -c 'mv /etc /etc.old && mkdir /etc && exec REWIND'"]);
    }

    #[test]
    fn wall_stops_a_program_in_a_user_namespace_without_the_preload_file() {
        let test = "wall_stops_a_program_in_a_user_namespace_without_the_preload_file";
        let probe = std::process::Command::new("unshare").args(["-Urm", "true"]).output();
        if !probe.is_ok_and(|output| output.status.success()) {
            return skip(test, "unshare", "no user namespaces here");
        }
        let hidden =
            "unshare -Urm sh -c 'mount --bind /dev/null /etc/ld.so.preload && exec REWIND'";
        is_stopped(test, &[hidden]);
    }

    #[test]
    fn wall_stops_a_program_with_its_own_loader() {
        is_stopped("wall_stops_a_program_with_its_own_loader", &["/opt/loader REWIND"]);
    }

    #[test]
    fn wall_stops_a_program_that_calls_the_driver_past_the_shim() {
        is_stopped("wall_stops_a_program_that_calls_the_driver_past_the_shim", &["REWIND raw"]);
    }

    /// As with `clone3` and `CLONE_INTO_CGROUP`, for which another container passes a descriptor of
    /// its group.
    #[test]
    fn process_in_another_control_group_is_found_and_ended() {
        const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let test = "process_in_another_control_group_is_found_and_ended";
        let Some(groups) = groups(test) else { return };
        for back_end in WALLS {
            let fixture = Fixture::new(A10).walled(back_end);
            let Some(oci) = OciHost::open(test, &fixture, Runtime::Crun, A10) else { return };
            let text = "tree = \"none\"\nover_limit = \"end\"\nover_limit_grace_s = 1\n";
            let _monitor = Monitor::start_with(&fixture, text);
            let attacker = attacker_named(ID, &oci, &fixture, &[]);
            let state = |expected| {
                fixture.eventually(expected, || {
                    let wall = shown(&fixture, &ID[..12]);
                    (wall["state"] == expected).then(|| wall["reason"].clone())
                })
            };
            // The first process on the GPU decides whether the simulated driver has limits.
            state("driver");
            let command = "exec /opt/loader /bin/rewind 64M /run/cgpu/use /tmp/go 240";
            let mut process = attacker.spawn(&["sh", "-c", command]);
            process.line();
            let record = fs::read(fixture.root().join("walls").join(ID)).expect("a record");
            let record: Value = serde_json::from_slice(&record).expect("JSON");
            let group = record["groups"][0]["folder"].as_str().expect("a folder").to_owned();
            let list = fs::read_to_string(Path::new(&group).join("cgroup.procs")).expect("a list");
            let other = groups.create("other");
            for pid in list.lines().skip(1) {
                ControlGroups::move_to(pid.parse().expect("a number"), &other);
            }
            attacker.exec(&["sh", "-c", "echo > /tmp/go"]).exits(0);
            process.line();
            attacker.exec(&["rm", "/tmp/go"]).exits(0);
            process.line();
            let taken = fixture.on_gpu() / MIB;
            assert!(taken > bound(1) + 1024, "{back_end}: no attack: {taken} MiB");
            let reason = state("partial").to_string();
            assert!(reason.contains("another control group"), "{reason}");
            fixture.eventually("its end", || (!process.runs()).then_some(()));
            drop(process);
            attacker.delete();
            is_clean(&fixture);
        }
    }

    pub(crate) fn container_that_is_deleted_takes_no_memory_beyond_its_limit(
        test: &str,
        runtime: Runtime,
    ) {
        let Some(_groups) = groups(test) else { return };
        for back_end in WALLS {
            let fixture = Fixture::new(A10).walled(back_end);
            let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
            // The next runtime takes a second before it ends the container.
            let config = fs::read_to_string(oci.config()).expect("a configuration");
            let program = config.split('"').rfind(|part| part.starts_with('/')).expect("a path");
            let slow = fixture.path("slow");
            let script = format!(
                "#!/bin/sh\ncase \" $* \" in *' delete '*) sleep 1;; esac\nexec {program} \"$@\"\n"
            );
            fs::write(&slow, script).expect("a script");
            let _ = std::process::Command::new("chmod").arg("+x").arg(&slow).status();
            fs::write(oci.config(), config.replace(program, &slow.to_string_lossy()))
                .expect("a configuration");
            let _monitor = monitor(&fixture, "auto");
            let attacker = attacker(&oci, &fixture, &[]);
            fixture.eventually("the wall", || {
                (shown(&fixture, "attacker")["state"] == "driver").then_some(())
            });
            let mut process = attacker.spawn(&[
                "sh",
                "-c",
                "exec /opt/loader /bin/rewind 64M /run/cgpu/use - 240",
            ]);
            process.line();
            process.line();
            // It goes on trying.
            process.line();
            let bound = bound(1);
            let before = fixture.on_gpu() / MIB;
            assert!(before > LIMIT && before <= bound, "{back_end}: {before} MiB");
            let mut delete = Child::start(oci.runtime(&["delete", "--force", "attacker"]));
            let mut most = 0;
            while delete.runs() {
                most = most.max(fixture.on_gpu() / MIB);
            }
            delete.finish().exits(0);
            std::mem::forget(attacker);
            println!("{back_end}: limit {LIMIT} MiB, {most} MiB while it was deleted");
            assert!(most <= bound, "{back_end}: {most} MiB, at most {bound}");
            drop(process);
            is_clean(&fixture);
        }
    }

    /// Returns the limits that the simulated driver has for control groups of any kind.
    fn limited(fixture: &Fixture) -> Vec<Value> {
        let mut command = fixture.native(&fixture.dist().file("cgpu-sim"));
        command.args(["wall", "--json"]);
        let groups = Outcome::of(command).silent().json();
        let groups = groups.as_array().expect("groups").clone();
        let is_limited = |group: &Value| group["soft_bytes"] != 0 || !group["hard_bytes"].is_null();
        groups.into_iter().filter(is_limited).collect()
    }

    pub(crate) fn containers_leave_no_limit_of_the_driver(test: &str, runtime: Runtime) {
        let Some(groups) = groups(test) else { return };
        let count: usize = std::env::var("CGPU_WALL_CONTAINERS")
            .map_or(1000, |count| count.parse().expect("CGPU_WALL_CONTAINERS is a number"));
        let count = count / WALLS.len();
        for back_end in WALLS {
            let fixture = Fixture::new(A10)
                .walled(back_end)
                .with_extra_time(std::time::Duration::from_secs(count as u64 * 5));
            let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
            let mut medians = [0.0, 0.0];
            for (wall, count) in [("off", count.min(20)), ("auto", count)] {
                let _monitor = monitor(&fixture, wall);
                let mut starts = Vec::new();
                for _ in 0..count {
                    let bundle = oci.bundle("one", ATTACKER, &["sleep", "600"]);
                    let above = groups.create(back_end);
                    let above = above.strip_prefix(groups.root()).expect("below the root");
                    let path = format!("/{}/engine-one", above.display());
                    change(&bundle, |config| config["linux"]["cgroupsPath"] = path.into());
                    let begun = Instant::now();
                    let container = oci.start_bundle("one", &bundle);
                    starts.push(begun.elapsed().as_secs_f64() * 1e3);
                    let is_set = limited(&fixture).len();
                    assert_eq!(is_set, usize::from(wall == "auto"), "{wall}");
                    container.delete();
                }
                starts.sort_by(f64::total_cmp);
                medians[usize::from(wall == "auto")] = starts[starts.len() / 2];
                fixture.wait_until_none("limits", || {
                    limited(&fixture).iter().map(Value::to_string).collect()
                });
                fixture
                    .wait_until_none("records of limits", || names(&fixture.root().join("walls")));
            }
            is_clean(&fixture);
            let [without, with] = medians;
            println!("{back_end}, start, median: {without:.1} ms without, {with:.1} ms with");
        }
    }

    pub(crate) fn variables_of_the_vendors_limits_are_not_in_the_container(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(A10);
        let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
        let warned = |log: &str| {
            let text = fs::read_to_string(fixture.path(log)).expect("a log");
            let warning = "cgpu-runtime: warning: NVIDIA_GPU_MEMORY_REQUEST and";
            assert_eq!(text.matches(warning).count(), 1, "{text}");
        };
        let container = oci.start("one", &[ATTACKER, &OTHER_LIMIT].concat());
        warned("one.out");
        // As engines start further processes, with variables of their own.
        let process = fixture.path("process.json");
        let env = [&["PATH=/bin", "OWN=1"], &OTHER_LIMIT[..]].concat();
        let text = json!({ "args": ["env"], "env": env, "cwd": "/", "user": {"uid": 0, "gid": 0} });
        fs::write(&process, text.to_string()).expect("a process");
        let with_own = oci.runtime(&["exec", "--process", &process.to_string_lossy(), "one"]);
        let with_own = Outcome::of(with_own).exits(0);
        fs::write(fixture.path("exec.out"), &with_own.stderr).expect("a log");
        warned("exec.out");
        for (outcome, own) in [
            (container.exec(&["cat", "/proc/1/environ"]), ATTACKER[0]),
            (container.exec(&["env"]), ATTACKER[0]),
            (with_own, "OWN=1"),
        ] {
            let variables = outcome.exits(0).stdout;
            assert!(variables.contains(own), "{variables}");
            assert!(!variables.contains("NVIDIA_GPU_MEMORY"), "{variables}");
        }
        container.delete();
        // A container without a slice is the vendor's alone.
        let plain = oci.start("plain", &OTHER_LIMIT);
        let variables = plain.exec(&["env"]).exits(0).stdout;
        assert!(OTHER_LIMIT.iter().all(|variable| variables.contains(variable)), "{variables}");
        plain.delete();
    }

    pub(crate) fn required_limit_that_the_driver_does_not_hold_starts_no_container(
        test: &str,
        runtime: Runtime,
    ) {
        let Some(groups) = groups(test) else { return };
        let off = "switched off (wall in monitor.toml)";
        for (back_end, wall, why) in
            [("", "auto", "r615"), ("dmem", "off", off), ("misc", "off", off)]
        {
            let fixture = Fixture::new(A10).walled(back_end);
            let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
            let without = monitor(&fixture, wall);
            await_answer(&oci, &fixture, |wall| wall["reason"].to_string().contains(why));
            let config = fs::read_to_string(oci.config()).expect("a configuration");
            fs::write(oci.config(), config + "wall = \"required\"\n").expect("a configuration");
            let own = fixture.path("").file_name().expect("a name").to_string_lossy().into_owned();
            let is_absent = |id: &str| {
                let state = Outcome::of(oci.runtime(&["state", id]));
                assert!(state.code() != Some(0), "it is there: {state:?}");
                is_clean(&fixture);
                assert!(back_end.is_empty() || limited(&fixture).is_empty());
                assert_eq!(names(&fixture.root().join("walls")), Vec::<String>::new());
                let groups = names(groups.root()).into_iter();
                let left: Vec<String> = groups.filter(|name| name.starts_with(&own)).collect();
                assert!(left.is_empty(), "{left:?}");
            };
            let message = oci.refused("one", ATTACKER);
            assert!(message.contains("wall = \"required\""), "{message}");
            assert!(message.contains(why) && !message.contains('\n'), "{message}");
            is_absent("one");
            // Without an engine the hook refuses. crun does not pass on a hook's output.
            let bundle = oci.bundle("two", ATTACKER, &["true"]);
            let refused = oci.quiet(&["run", "--bundle", &bundle.to_string_lossy(), "two"]);
            assert!(refused.code() != Some(0), "{refused:?}");
            assert!(runtime == Runtime::Crun || refused.stderr.contains(why), "{refused:?}");
            is_absent("two");
            if !back_end.is_empty() {
                drop(without);
                let _on = monitor(&fixture, "auto");
                fixture.eventually("NVML", || {
                    let bundle = oci.bundle("three", ATTACKER, &["sleep", "600"]);
                    let bundle = bundle.to_string_lossy();
                    let created = oci.quiet(&["create", "--bundle", &bundle, "three"]);
                    (created.code() == Some(0)).then_some(())
                });
                assert_eq!(limited(&fixture).len(), 1);
                Outcome::of(oci.runtime(&["delete", "--force", "three"])).exits(0);
                is_absent("three");
            }
        }
    }

    /// Also where no wall is required. A container that runs keeps its limit.
    pub(crate) fn margin_that_cannot_apply_starts_no_container(test: &str, runtime: Runtime) {
        const MARGINS: [(i64, &str); 2] =
            [(23029, "but the GPU has 23028 MiB"), (-1, "below zero")];
        let Some(_groups) = groups(test) else { return };
        for (back_end, (margin, why)) in
            WALLS.into_iter().zip(MARGINS).chain([("dmem", MARGINS[1])])
        {
            let config = |margin| format!("tree = \"none\"\nwall_margin_mib = {margin}\n");
            let fixture = Fixture::new(A10).walled(back_end);
            let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
            let good = Monitor::start_with(&fixture, &config(600));
            let running = oci.start("running", NEIGHBOUR);
            let is_set = || (shown(&fixture, "running")["state"] == "driver").then_some(());
            fixture.eventually("the wall", is_set);
            drop(good);
            let bad = Monitor::start_with(&fixture, &config(margin));
            fixture.eventually("the wall", is_set);
            let reason = format!("wall_margin_mib in monitor.toml is {margin}, {why}");
            let warning = format!("no container starts on GPU 0: {reason}");
            assert_eq!(fixture.smi()["warnings"], serde_json::json!([warning]));
            let message = oci.refused("one", ATTACKER);
            assert!(message.contains(&reason) && !message.contains('\n'), "{message}");
            // Without an engine the hook refuses. crun does not pass on a hook's output.
            let bundle = oci.bundle("two", ATTACKER, &["true"]);
            let refused = oci.quiet(&["run", "--bundle", &bundle.to_string_lossy(), "two"]);
            assert!(refused.code() != Some(0), "{refused:?}");
            assert!(runtime == Runtime::Crun || refused.stderr.contains(&reason), "{refused:?}");
            for id in ["one", "two"] {
                let state = Outcome::of(oci.runtime(&["state", id]));
                assert!(state.code() != Some(0), "it is there: {state:?}");
            }
            fixture.eventually("the limit of the one that runs alone", || {
                let records = names(&fixture.root().join("walls"));
                (limited(&fixture).len() == 1 && records == ["running"]).then_some(())
            });
            assert_eq!(shown(&fixture, "running")["state"], "driver");
            drop(bad);
            let _off = monitor(&fixture, "off");
            oci.start("three", ATTACKER).delete();
            running.delete();
            is_clean(&fixture);
        }
    }

    /// The engine's own runtime starts it, with the hooks of a claim's CDI device.
    pub(crate) fn limit_of_a_share_is_there_before_its_first_process(test: &str, runtime: Runtime) {
        let Some(_groups) = groups(test) else { return };
        for back_end in WALLS {
            let fixture = Fixture::new(A10).walled(back_end);
            let Some(oci) = OciHost::open(test, &fixture, runtime, A10) else { return };
            prepare_share(&fixture, "u-0", &uuids(&fixture, A10)[0], 4000, 1);
            let _monitor = monitor(&fixture, "auto");
            await_answer(&oci, &fixture, |wall| wall["state"] == "driver");
            let container =
                oci.create_bare("one", &bundle_of_shares(&fixture, &oci, "one", &[], &["u-0"]));
            let hards = || -> Vec<u64> {
                let bytes = |group: &Value| group["hard_bytes"].as_u64().expect("a number");
                limited(&fixture).iter().map(|group| bytes(group) / MIB).collect()
            };
            assert_eq!(hards(), [4000 + MARGIN]);
            Outcome::of(oci.bare(&["start", "one"])).exits(0);
            assert_eq!(sizes(&container, &["env", "-i", "/bin/meminfo"]), [4000]);
            assert_eq!(shown(&fixture, "u-0")["state"], "driver");
            // As engines do.
            Outcome::of(oci.bare(&["kill", "one", "KILL"])).exits(0);
            fixture.wait_until_none("limits", || {
                limited(&fixture).iter().map(Value::to_string).collect()
            });
            Outcome::of(oci.bare(&["delete", "one"])).exits(0);
            drop(container);
            fixture.wait_until_none("records of limits", || names(&fixture.root().join("walls")));
            is_clean(&fixture);
        }
    }
}
