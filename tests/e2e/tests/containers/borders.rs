//! Edge cases: files that a container may write, ambiguous options, foreign loaders, and GPUs and
//! containers that change.

use super::*;

with_each_runtime! {
    container_files_are_limited_to_their_tmpfs
    bundle_named_in_any_form_has_its_limit
    slice_is_reclaimed_when_the_next_runtime_fails
    program_with_foreign_loader_is_reported_by_the_watcher
    control_group_with_a_containers_name_is_not_its_own
    container_whose_first_process_has_ended_keeps_its_memory
    gpu_partitioned_after_start_is_refused
    idle_container_in_another_pid_namespace_is_not_replaced
}

mod steps {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use cgpu_e2e::{contained, skip};

    use super::*;

    /// Returns whether the container's files are in their own file system, as for the host's
    /// engines.
    fn has_own_memory(folder: &Path) -> bool {
        let device = |path: &Path| fs::metadata(path).expect("it is there").dev();
        device(folder) != device(folder.parent().expect("a parent"))
    }

    pub(crate) fn container_files_are_limited_to_their_tmpfs(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let (hostile, neighbour) = (oci.start("hostile", SIX), oci.start("neighbour", EIGHT));
        let folder = oci.folder("hostile");
        if !has_own_memory(&folder) {
            // crun runs in its own mount namespace where the host has both versions of control
            // groups. The tests themselves may run in a container.
            skip(test, "host-mounts", "what is mounted here is not mounted for the host");
            hostile.delete();
            neighbour.delete();
            return;
        }
        // At most 32 MiB each, if there is no other limit.
        for file in ["use", "refused"] {
            let fill = format!("ulimit -f 65536; exec cat /dev/zero >> /run/cgpu/{file}");
            let outcome = hostile.exec(&["sh", "-c", &fill]);
            assert!(outcome.stderr.contains("No space left on device"), "{outcome:?}");
        }
        for attempt in ["echo > /run/cgpu/new", "echo > /run/cgpu/sim/../grant"] {
            let outcome = hostile.exec(&["sh", "-c", attempt]);
            assert!(outcome.stderr.contains("Read-only"), "{outcome:?}");
        }
        let held: u64 = fs::read_dir(&folder)
            .expect("its folder")
            .map(|entry| entry.and_then(|entry| entry.metadata()).expect("a file").blocks() * 512)
            .sum();
        assert!((MIB..4 * MIB).contains(&held), "{held}");
        // Other containers are unaffected, and the error says why this container's programs do not
        // start.
        assert_eq!(sizes(&neighbour, &["meminfo"]), [8058]);
        let own = hostile.exec(&["meminfo"]);
        assert!(own.code() != Some(0) && own.stderr.contains("/run/cgpu/use: "), "{own:?}");
        hostile.delete();
        neighbour.delete();
        is_clean(&fixture);
        oci.start("hostile", SIX).delete();
        is_clean(&fixture);
    }

    /// Each way to name the bundle and the configuration leads to the container with its limit, or
    /// to none.
    pub(crate) fn bundle_named_in_any_form_has_its_limit(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let meant = oci.bundle("meant", SIX, &["init"]);
        // The bundle that a runtime takes if it parses the line differently: it would start without
        // a limit and print so.
        let decoy = oci.bundle("decoy", &[], &["sh", "-c", "echo decoy"]);
        let there = meant.to_string_lossy().into_owned();
        let beside = decoy.with_file_name("=meant");
        for odd in [&beside, &decoy.join("undle"), &decoy.join("undle=meant")] {
            std::os::unix::fs::symlink(&decoy, odd).expect("a link");
        }
        let other = decoy.join("other.json");
        let config = fs::read(meant.join("config.json")).expect("a configuration");
        let mut started = 0;
        for (before, words) in [
            ("", "--bundle THERE ID"),
            ("", "--bundle=THERE ID"),
            ("", "-b THERE ID"),
            ("", "-bTHERE ID"),
            ("", "-b=THERE ID"),
            ("", "-bundle THERE ID"),
            ("", "-bundle=THERE ID"),
            ("", "--bund THERE ID"),
            ("", "ID --bundle THERE"),
            ("", "--bundle DECOY --bundle THERE ID"),
            ("", "-b THERE -- ID"),
            ("", "--no-pivot -b THERE ID"),
            ("", "-b THERE -f other.json ID"),
            ("", "-b THERE -fother.json ID"),
            ("", "-b THERE -f=other.json ID"),
            ("", "-b THERE --config other.json ID"),
            ("", "-b THERE --config=other.json ID"),
            ("", "-b THERE --conf=other.json ID"),
            ("", "-b THERE -f config.json ID"),
            ("--debug", "--bundle THERE ID"),
            ("--log LOG --log-format json", "--bundle THERE ID"),
            ("--log=LOG --log-format=json --root=ROOT", "--bundle THERE ID"),
            ("-root ROOT", "--bundle THERE ID"),
            ("--systemd-cgroup=false", "--bundle THERE ID"),
            ("--rootless false", "--bundle THERE ID"),
            ("--roo=ROOT", "--bundle THERE ID"),
            ("--log-for json", "--bundle THERE ID"),
        ] {
            fs::write(&other, &config).expect("a configuration");
            fs::write(meant.join("config.json"), &config).expect("a configuration");
            let id = "way";
            let whole = |line: &str| {
                let log = fixture.path("log").to_string_lossy().into_owned();
                let line = line.replace("THERE", &there).replace("DECOY", &decoy.to_string_lossy());
                let line = line.replace("ID", id).replace("LOG", &log);
                let line = line.replace("ROOT", &fixture.path("state").to_string_lossy());
                line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            };
            let words: Vec<String> = [whole(before), vec!["run".to_owned()], whole(words)].concat();
            let mut command = oci.runtime(&words.iter().map(String::as_str).collect::<Vec<_>>());
            command.current_dir(&decoy);
            let outcome = Outcome::of(command);
            assert!(!outcome.stdout.contains("decoy"), "{words:?}: {outcome:?}");
            if outcome.code() == Some(0) {
                assert_eq!(outcome.number("total"), 6043 * MIB, "{words:?}");
                started += 1;
            } else {
                assert!(!outcome.stdout.contains("\"total\""), "{words:?}: {outcome:?}");
            }
        }
        assert!(started >= 10, "{started}");
        // A runtime that could not parse its line created nothing, so the ID can be used again.
        oci.start("way", SIX).delete();
        is_clean(&fixture);
    }

    /// `cgpu-runtime` has become the next runtime by then and cannot reclaim the slice. The next
    /// start does.
    pub(crate) fn slice_is_reclaimed_when_the_next_runtime_fails(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("refused", EIGHT, &["true"]).to_string_lossy().into_owned();
        let refused = oci.quiet(&["run", "--no-such-option", "--bundle", &bundle, "refused"]);
        assert!(refused.code() != Some(0), "{refused:?}");
        // The refused container's bundle still exists and is new; two of eight do not fit on the
        // GPU.
        let container = oci.start("other", EIGHT);
        assert!(!oci.folder("refused").exists());
        container.delete();
        is_clean(&fixture);
    }

    /// A loader that was built for another prefix reads that prefix's preload file. The watcher
    /// reports what it loads as unlimited.
    pub(crate) fn program_with_foreign_loader_is_reported_by_the_watcher(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("mixed", SIX, &["sleep", "600"]);
        let rootfs = bundle.join("rootfs");
        add_foreign_loader(&rootfs);
        let _monitor = Monitor::start(&fixture);
        let container = oci.start_bundle("mixed", &bundle);
        assert_eq!(sizes(&container, &["meminfo"]), [6043]);
        let mut held = container.spawn(&["/opt/loader", "/bin/hold", "7G", "240"]);
        held.line();
        let finding = fixture.eventually("it is found", || {
            let all = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
            all.into_iter().find(|one| one["container"] == "mixed")
        });
        assert_eq!(
            (&finding["cause"], &finding["shim"]),
            (&"unshimmed".into(), &"absent".into()),
            "{finding}"
        );
        drop(held);
        container.delete();
        fs::create_dir_all(rootfs.join("nix/store")).expect("a folder");
        let container = oci.start_bundle("mixed", &bundle);
        for file in ["/etc/ld.so.preload", "/etc/ld-nix.so.preload"] {
            assert_eq!(
                container.exec(&["cat", file]).exits(0).stdout,
                "/run/cgpu/libcgpu.so\n",
                "{file}"
            );
        }
        container.delete();
        is_clean(&fixture);
    }

    /// Users of the host name the groups that systemd has delegated to them, and containers those
    /// that they may write, as they like.
    pub(crate) fn control_group_with_a_containers_name_is_not_its_own(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let has_groups = |hierarchy: &&Path| hierarchy.join("cgroup.procs").exists();
        let Some(hierarchy) = hierarchies.into_iter().find(has_groups) else {
            return skip(test, "control-groups", "no control groups are mounted");
        };
        let name = fixture.path("").file_name().expect("a name").to_string_lossy().into_owned();
        let id = "a1".repeat(32);
        let group = |path: &OsStr| {
            let group = hierarchy.join(&name).join(path);
            fs::create_dir_all(&group).expect("a group");
            group
        };
        let bundle = oci.bundle(&id, SIX, &["sleep", "600"]);
        let own = format!("/{name}/docker/{id}");
        change(&bundle, |config| config["linux"]["cgroupsPath"] = own.clone().into());
        add_foreign_loader(&bundle.join("rootfs"));
        let container = oci.start_bundle(&id, &bundle);
        let mut inside = container.spawn(&["/opt/loader", "/bin/hold", "1G", "240"]);
        inside.line();
        // Another user's process, in a group of its own.
        let user = group(format!("user/docker-{id}.scope").as_ref());
        let program = fixture.dist().file("programs/hold");
        let mut enter = fixture.native(Path::new("sh"));
        enter.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        enter.arg(&user).arg(program).args(["1G", "240"]);
        let mut outside = Child::start(enter);
        let held: Value = serde_json::from_str(&outside.line()).expect("JSON");
        let outside_pid = u32::try_from(held["pid"].as_u64().expect("a number")).expect("a pid");
        let pids = || -> Vec<u32> {
            let text = fs::read_to_string(hierarchy.join(&own[1..]).join("cgroup.procs"));
            text.unwrap_or_default().lines().filter_map(|pid| pid.parse().ok()).collect()
        };
        let owners = |fixture: &Fixture, pids: &[u32]| {
            let _monitor = Monitor::start(fixture);
            fixture.eventually("both are found", || {
                let all = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
                let owner = |pids: &[u32]| {
                    let is_of = |one: &&Value| pids.iter().any(|pid| one["pid"] == *pid);
                    all.iter().find(is_of).map(|one| !one["container"].is_null())
                };
                Some((owner(pids)?, owner(&[outside_pid])?))
            })
        };
        let inside_pids = pids();
        assert_eq!(owners(&fixture, &inside_pids), (true, false));
        // The container names a group below its own by bytes that are no text.
        let odd = group(OsStr::from_bytes(&[format!("docker/{id}/").as_bytes(), b"\xff"].concat()));
        for pid in &inside_pids {
            let _ = fs::write(odd.join("cgroup.procs"), pid.to_string());
        }
        assert_eq!(owners(&fixture, &inside_pids), (true, false));
        drop((inside, outside));
        container.delete();
        for group in [odd, user] {
            let _ = fs::remove_dir(group);
        }
        is_clean(&fixture);
    }

    /// Where containers share a PID namespace, processes outlive the first one of their container
    /// until its engine deletes it.
    pub(crate) fn container_whose_first_process_has_ended_keeps_its_memory(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let record = |id: &str| -> Value {
            let text = fs::read_to_string(fixture.root().join("records").join(id));
            serde_json::from_str(&text.expect("a record")).expect("JSON")
        };
        let pause = oci.start("pause", SIX);
        let namespace = format!("/proc/{}/ns/pid", record("pause")["first"]["pid"]);
        let program = ["sh", "-c", "sleep 600 | hold 1G 600 & exec sleep 1"];
        let bundle = oci.bundle("successor", EIGHT, &program);
        change(&bundle, |config| {
            let all = config["linux"]["namespaces"].as_array_mut().expect("namespaces");
            all.retain(|one| one["type"] != "pid");
            all.push(json!({ "type": "pid", "path": namespace }));
        });
        let successor = oci.start_bundle("successor", &bundle);
        if record("successor")["groups"].as_array().is_none_or(Vec::is_empty) {
            skip(test, "control-groups", "the runtime makes none here");
        } else {
            let stat = format!("/proc/{}/stat", record("successor")["first"]["pid"]);
            fixture.eventually("the first process has ended", || {
                let line = fs::read_to_string(&stat).unwrap_or_default();
                (line.is_empty() || line.contains(") Z ")).then_some(())
            });
            let next = oci.bundle("next", SIX, &["sleep", "600"]);
            let create = ["create", "--bundle", &next.to_string_lossy(), "next"];
            let refused = Outcome::of(oci.runtime(&create));
            assert!(refused.code() != Some(0), "{refused:?}");
            assert!(refused.stderr.contains("do not fit"), "{refused:?}");
        }
        successor.delete();
        oci.start("next", SIX).delete();
        pause.delete();
        is_clean(&fixture);
    }

    pub(crate) fn gpu_partitioned_after_start_is_refused(test: &str, runtime: Runtime) {
        let whole = "A100:40960";
        let fixture = Fixture::new(whole);
        let Some(oci) = OciHost::open(test, &fixture, runtime, whole) else { return };
        let container = oci.start("one", SIX);
        assert_eq!(sizes(&container, &["meminfo"]), [40960 * 6 / 15]);
        let partitioned = [
            "CGPU_SIM_GPUS=A100:40960/mig=3g.20gb,1g.5gb",
            "CGPU_SIM_STATE=/run/cgpu/sim/partitioned",
        ];
        let later = |program: &[&str]| {
            container.exec(&[&["env", partitioned[0], partitioned[1]], program].concat())
        };
        let refused = later(&["/bin/init"]);
        assert!(
            refused.stderr.contains("whole, found it partitioned into MIG instances"),
            "{refused:?}"
        );
        assert_eq!(refused.number("init"), 1);
        let filled = later(&["/bin/alloc_fill", "64M"]);
        assert!(!filled.stdout.contains("granted"), "{filled:?}");
        container.delete();
        is_clean(&fixture);
    }

    /// The container has its own PID namespace and no process on the GPU. Its ID and bundle are
    /// used again from the host.
    pub(crate) fn idle_container_in_another_pid_namespace_is_not_replaced(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("idle", SIX, &["sleep", "600"]).to_string_lossy().into_owned();
        let log = fixture.path("log");
        let inside = oci.runtime(&["run", "--bundle", &bundle, "idle"]);
        let Some(engine) = contained(&inside, true) else { return };
        let engine = Child::start_for(engine, std::time::Duration::from_secs(120));
        fixture.eventually("it runs", || {
            let record = fs::read_to_string(fixture.root().join("records/idle")).ok()?;
            record.contains("\"first\":{").then_some(())
        });
        let again = || {
            let state = fixture.path("other-state").to_string_lossy().into_owned();
            oci.quiet(&[
                "--root",
                &state,
                "run",
                "--bundle",
                &bundle,
                "--pid-file",
                &log.to_string_lossy(),
                "idle",
            ])
        };
        let refused = again();
        let initial = Path::new("pid:[4026531836]");
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        if of("self").is_some_and(|own| own == initial) {
            assert!(
                refused.code() == Some(1) && refused.stderr.contains("is there already"),
                "{refused:?}"
            );
            assert!(oci.folder("idle").join("limits").exists());
        }
        drop(engine);
        if of("1").is_some_and(|first| first == initial) {
            fixture.eventually("its room is free", || {
                let container = oci.start("other", EIGHT);
                container.delete();
                (!oci.folder("idle").exists()).then_some(())
            });
        }
    }
}
