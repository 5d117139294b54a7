//! Configurations that hide cgpu's files or are no files, bundles that are used again, and the ways
//! in which a program leaves the shim.

use super::*;

with_each_runtime! {
    hidden_files_start_no_unlimited_container
    bundle_used_again_under_another_id_has_one_slice
    configuration_that_is_no_file_is_refused
    slip_in_the_configuration_stops_only_containers_with_a_slice
    container_without_seccomp_starts_with_a_warning
    ways_past_the_shim_are_as_documented
    region_restored_in_a_container_opens_no_limit
    doorbell_flood_from_a_container_marks_only_itself
}

mod steps {
    use std::process::Command;

    use cgpu_e2e::{find, install, seccomp, skip};

    use super::*;

    /// How each command starts the container of a bundle and prints its GPU's size.
    fn sizes_by_each_command(oci: &OciHost<'_>, bundle: &Path) -> Vec<(String, Outcome)> {
        let at = bundle.to_string_lossy();
        let pid = bundle.join("pid").to_string_lossy().into_owned();
        let mut outcomes = Vec::new();
        for more in [&["--pid-file", &pid[..]][..], &[]] {
            let words = [&["create", "--bundle", &at], more, &["hidden"]].concat();
            let created = oci.quiet(&words);
            let outcome = if created.code() == Some(0) {
                Outcome::of(oci.runtime(&["start", "hidden"])).exits(0);
                Outcome::of(oci.runtime(&["exec", "hidden", "init"]))
            } else {
                let state = Outcome::of(oci.runtime(&["state", "hidden"]));
                assert!(state.code() != Some(0), "{words:?} left a container: {state:?}");
                assert!(!oci.folder("hidden").exists(), "{words:?} left a folder");
                created
            };
            let _ = oci.quiet(&["delete", "--force", "hidden"]);
            outcomes.push((format!("{words:?}"), outcome));
        }
        // Here the check is a hook, and crun calls it after the program's start.
        let script = "init && sleep 2 && echo survived";
        change(bundle, |config| config["process"]["args"] = json!(["sh", "-c", script]));
        let words = ["run", "--bundle", &at, "hidden"];
        let mut outcome = Outcome::of(oci.runtime(&words));
        outcome.stdout = match outcome.stdout.strip_suffix("survived\n") {
            Some(line) => line.to_owned(),
            None => String::new(),
        };
        outcomes.push((format!("{words:?}"), outcome));
        outcomes
    }

    /// Paths are masked when all mounts are made, by the runtime's own process, and it follows
    /// links that cannot be followed beforehand. crun refuses those of `/proc` itself.
    pub(crate) fn hidden_files_start_no_unlimited_container(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let mut refusals = 0;
        for masked in [
            "/proc/self/root/etc/ld.so.preload",
            "/proc/thread-self/root/etc/ld.so.preload",
            "/proc/1/root/etc",
            "/proc/self/root/run/cgpu",
            "/proc/self/root/run/cgpu/limits",
            "/proc/self/root/run/cgpu/libcgpu.so",
            "/dev/fd/../root/etc/ld.so.preload",
            "/proc/self/cwd/etc/ld.so.preload",
            // A tmpfs that begins with the image's files.
            "/opt/link",
        ] {
            let bundle = oci.bundle("hidden", SIX, &["sleep", "600"]);
            let link = bundle.join("rootfs/opt/link");
            fs::create_dir_all(link.parent().expect("a folder")).expect("a folder");
            let _ = std::os::unix::fs::symlink("/etc/ld.so.preload", &link);
            change(&bundle, |config| {
                config["linux"]["maskedPaths"] = json!([masked]);
                let mounts = config["mounts"].as_array_mut().expect("mounts");
                mounts.push(json!({"destination": "/opt", "type": "tmpfs", "source": "tmpfs",
                    "options": ["tmpcopyup"]}));
            });
            for (words, outcome) in sizes_by_each_command(&oci, &bundle) {
                if outcome.code() == Some(0) {
                    let total = outcome.number("total");
                    assert_eq!(total, 6043 * MIB, "{masked} {words}: {outcome:?}");
                    continue;
                }
                assert!(!outcome.stdout.contains("\"total\""), "{masked} {words}: {outcome:?}");
                refusals += usize::from(outcome.stderr.contains("would not open cgpu's file at /"));
            }
        }
        assert!(refusals >= if runtime == Runtime::Crun { 2 } else { 20 }, "{refusals}");
        // The next start removes what the failed ones of `run` have left.
        oci.start("other", SIX).delete();
        is_clean(&fixture);
    }

    /// An engine that makes a new container from the folder of an old one.
    pub(crate) fn bundle_used_again_under_another_id_has_one_slice(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("shared", SIX, &["sleep", "600"]);
        let before = fs::read(bundle.join("config.json")).expect("a configuration");
        let before: Value = serde_json::from_slice(&before).expect("JSON");
        let edited = |id: &str| {
            let text = fs::read_to_string(bundle.join("config.json")).expect("a configuration");
            let config: Value = serde_json::from_str(&text).expect("JSON");
            let of = |name: &str| config["hooks"][name].as_array().map_or(0, Vec::len);
            let mounts = config["mounts"].as_array().expect("mounts");
            let ours = |mount: &&Value| mount["destination"] == "/run/cgpu";
            let sources: Vec<_> = mounts.iter().filter(ours).map(|one| &one["source"]).collect();
            assert_eq!(sources, [&json!(oci.folder(id))]);
            assert_eq!(of("poststop"), 1, "{text}");
            mounts.len()
        };
        let own_group = |id: &str| {
            change(&bundle, |config| {
                let group = config["linux"]["cgroupsPath"].as_str().expect("a path");
                let group = group.trim_end_matches("-again").to_owned();
                let group = if id == "one" { group } else { format!("{group}-again") };
                config["linux"]["cgroupsPath"] = group.into();
            });
        };
        let one = oci.start_bundle("one", &bundle);
        let mounts = edited("one");
        one.delete();
        let two = oci.start_bundle("two", &bundle);
        assert_eq!(sizes(&two, &["meminfo"]), [6043]);
        assert_eq!(edited("two"), mounts);
        // The other container still runs.
        own_group("three");
        let three = oci.start_bundle("three", &bundle);
        assert_eq!(sizes(&three, &["meminfo"]), [6043]);
        assert_eq!(edited("three"), mounts);
        three.delete();
        two.delete();
        // Without a request it is a container without a slice.
        own_group("one");
        change(&bundle, |config| config["process"]["env"] = json!(["PATH=/bin"]));
        let none = oci.start_bundle("none", &bundle);
        let maps = none.exec(&["cat", "/proc/self/maps"]).exits(0).stdout;
        assert!(!maps.contains("cgpu"), "{maps}");
        none.delete();
        let after = fs::read(bundle.join("config.json")).expect("a configuration");
        let after: Value = serde_json::from_slice(&after).expect("JSON");
        assert_eq!(after["mounts"], before["mounts"]);
        assert!(!after.to_string().contains("cgpu-runtime"), "{after}");
        is_clean(&fixture);
    }

    /// None of them is waited for or read without end.
    pub(crate) fn configuration_that_is_no_file_is_refused(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("odd", SIX, &["true"]);
        let file = bundle.join("config.json");
        let fifo = || {
            let made = Command::new("mkfifo").arg(&file).status().expect("mkfifo, of coreutils");
            assert!(made.success());
        };
        let device = || std::os::unix::fs::symlink("/dev/zero", &file).expect("a link");
        let large = || {
            let file = fs::File::create(&file).expect("a file");
            file.set_len(65 << 20).expect("a sparse file");
        };
        let folder = || fs::create_dir(&file).expect("a folder");
        let cases: [(&dyn Fn(), &str); 4] = [
            (&fifo, "expected a file, found a FIFO"),
            (&device, "expected a file, found a device"),
            (&large, "config.json is larger than 64 MiB"),
            (&folder, "expected a file, found a folder"),
        ];
        for (make, part) in cases {
            fs::remove_file(&file).expect("the file of the case before");
            make();
            let message = oci.refused_bundle("odd", &bundle);
            assert!(message.contains(part), "{message}");
        }
        // The configuration of `cgpu-runtime`, and a further process.
        let pipe = fixture.path("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo, of coreutils");
        assert!(made.success());
        let container = oci.start("one", SIX);
        let mut command = Command::new(fixture.dist().file("cgpu-runtime"));
        command.arg("--cgpu-config").arg(&pipe).args(["create", "--bundle", "/", "odd"]);
        let outcome = Outcome::of(command);
        assert!(outcome.stderr.contains("expected a file, found a FIFO"), "{outcome:?}");
        container.delete();
        is_clean(&fixture);
    }

    /// It stopped every container of the host.
    pub(crate) fn slip_in_the_configuration_stops_only_containers_with_a_slice(
        test: &str,
        runtime: Runtime,
    ) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let valid = fs::read_to_string(oci.config()).expect("a configuration");
        for slip in ["runtme = \"/usr/bin/runc\"\n", "root = run/cgpu\n"] {
            fs::write(oci.config(), format!("{valid}{slip}")).expect("a configuration");
            let bundle = oci.bundle("sliced", SIX, &["true"]);
            let message = oci.refused_bundle("sliced", &bundle);
            assert!(message.contains("runtime.toml, line "), "{message}");
            let misspelt = &["ALIYUN_COM_GPU_MEM=6"];
            let bundle = oci.bundle("plain", misspelt, &["true"]);
            let log = fixture.path("log").to_string_lossy().into_owned();
            let at = bundle.to_string_lossy().into_owned();
            let words = ["--log", &log, "run", "--bundle", &at, "plain"];
            Outcome::of(oci.runtime(&words)).exits(0);
            let text = fs::read_to_string(&log).expect("a log");
            assert!(text.contains("requests no GPU, and starts as it is"), "{text}");
            assert!(text.contains("cgpu has no variable ALIYUN_COM_GPU_MEM, "), "{text}");
            fs::remove_file(&log).expect("the log");
        }
        is_clean(&fixture);
    }

    pub(crate) fn container_without_seccomp_starts_with_a_warning(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let log = fixture.path("log").to_string_lossy().into_owned();
        for (filter, variables, warns) in
            [(Value::Null, SIX, true), (seccomp(), SIX, false), (Value::Null, &[], false)]
        {
            let bundle = oci.bundle("one", variables, &["true"]);
            change(&bundle, |config| config["linux"]["seccomp"] = filter);
            let at = bundle.to_string_lossy().into_owned();
            let words = ["--log", &log, "--log-format", "json", "run", "--bundle", &at, "one"];
            let _ = fs::remove_file(&log);
            let outcome = Outcome::of(oci.runtime(&words)).exits(0);
            change(&bundle, |config| config["process"]["args"] = json!(["sleep", "600"]));
            let container = oci.start_bundle("one", &bundle);
            let state = Outcome::of(oci.bare(&["state", "one"])).exits(0).stdout;
            let state: Value = serde_json::from_str(&state).expect("JSON");
            let doctor = ["doctor", "--json", "--pid", &state["pid"].to_string()];
            let found = Outcome::of(fixture.cgpu(&doctor)).stdout;
            assert_eq!(found.contains("\"no_seccomp\""), warns, "{found}");
            container.delete();
            let text = fs::read_to_string(&log).unwrap_or_default();
            let warning = "the container has no seccomp filter";
            assert_eq!(outcome.stderr.contains(warning), warns, "{outcome:?}");
            assert_eq!(text.contains(warning), warns, "{text}");
            assert!(!warns || text.contains("\"warning\""), "{text}");
        }
        is_clean(&fixture);
    }

    /// Returns the kinds of the faults that the monitor shows for a container.
    fn faults(fixture: &Fixture, container: &str) -> Vec<String> {
        let smi = fixture.smi();
        let mut all = smi["containers"].as_array().expect("containers").iter();
        let found = all.find(|one| one["id"] == container).expect("the container");
        found["faults"].as_object().expect("faults").keys().cloned().collect()
    }

    pub(crate) fn region_restored_in_a_container_opens_no_limit(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let _monitor = Monitor::start(&fixture);
        let bundle = oci.bundle("hostile", SIX, &["sleep", "600"]);
        install(&bundle.join("rootfs"), &[fixture.dist().program("rewind")]);
        let hostile = oci.start_bundle("hostile", &bundle);
        let rewind = ["rewind", "64M", "/run/cgpu/use", "-", "240"];
        let mut program = hostile.spawn(&rewind);
        let mut held = || {
            let line: Value = serde_json::from_str(&program.line()).expect("its report");
            line["held"].as_u64().expect("a number of bytes") / MIB
        };
        (0..2).for_each(|_| assert_eq!(held(), 0, "it has a context only"));
        let most = held();
        assert!((5000..=6043).contains(&most), "{most} MiB of 6043");
        fixture.eventually("a fault", || {
            faults(&fixture, "hostile").contains(&"tampered".to_owned()).then_some(())
        });
        let neighbour = oci.start("neighbour", SIX);
        assert_eq!(neighbour.exec(&["hold", "5G", "1"]).exits(0).code(), Some(0));
        assert!(faults(&fixture, "neighbour").is_empty());
        drop(program);
        neighbour.delete();
        hostile.delete();
        is_clean(&fixture);
    }

    /// The pipe as large as a user may make it is always full.
    pub(crate) fn doorbell_flood_from_a_container_marks_only_itself(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let _monitor = Monitor::start(&fixture);
        let bundle = oci.bundle("neighbour", SIX, &["sleep", "600"]);
        install(&bundle.join("rootfs"), &[fixture.dist().program("kernels")]);
        let (hostile, neighbour) =
            (oci.start("hostile", SIX), oci.start_bundle("neighbour", &bundle));
        let flood = hostile.spawn(&["sh", "-c", "exec cat /dev/zero >/run/cgpu/doorbell"]);
        let work = || neighbour.exec(&["kernels", "8", "64", "last"]).exits(0).code();
        fixture.eventually("a fault", || {
            assert_eq!(work(), Some(0), "a neighbour has its turns");
            faults(&fixture, "hostile").contains(&"noisy".to_owned()).then_some(())
        });
        assert!(faults(&fixture, "neighbour").is_empty());
        drop(flood);
        neighbour.delete();
        hostile.delete();
        is_clean(&fixture);
    }

    /// What a program of a container sees by one way.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Seen {
        /// Its limit.
        Limit,
        /// The whole GPU.
        All,
        /// Nothing: the way is closed.
        Nothing,
    }

    /// The ways of `docs/monitoring.md`, with what each gives without a seccomp filter and with one
    /// that refuses what the engines' default profiles refuse. PROGRAM is a program of the image.
    const WAYS: [(&str, Seen, Seen); 7] = [
        ("env -i /bin/PROGRAM", Seen::Limit, Seen::Limit),
        ("umount /etc/ld.so.preload && PROGRAM", Seen::Nothing, Seen::Nothing),
        ("mount --bind /dev/null /etc/ld.so.preload && PROGRAM", Seen::Nothing, Seen::Nothing),
        (
            "unshare -Urm sh -c 'mount --bind /dev/null /etc/ld.so.preload && exec PROGRAM'",
            Seen::All,
            Seen::Nothing,
        ),
        ("/opt/loader /bin/PROGRAM", Seen::All, Seen::All),
        (
            "chroot /jail env LD_LIBRARY_PATH=/lib64 CGPU_SIM_GPUS=T4:15109 CGPU_SIM_STATE=/state \
             /bin/PROGRAM",
            Seen::All,
            Seen::All,
        ),
        // The last one, since it changes the image.
        ("mv /etc /etc.old && mkdir /etc && PROGRAM", Seen::All, Seen::All),
    ];

    pub(crate) fn ways_past_the_shim_are_as_documented(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let tools = ["umount", "chroot", "mv", "mkdir"].map(|name| find(name).expect("coreutils"));
        let _monitor = Monitor::start(&fixture);
        for is_filtered in [false, true] {
            let id = if is_filtered { "filtered" } else { "open" };
            let bundle = oci.bundle(id, SIX, &["sleep", "600"]);
            let rootfs = bundle.join("rootfs");
            install(&rootfs, &tools);
            add_foreign_loader(&rootfs);
            add_static_program(&rootfs);
            add_jail(&fixture, &rootfs);
            change(&bundle, |config| {
                config["root"]["readonly"] = false.into();
                for kind in ["bounding", "effective", "permitted"] {
                    let list = config["process"]["capabilities"][kind].as_array_mut();
                    // As Docker gives them. The latter lets root map itself in a user namespace.
                    let more = ["CAP_SYS_CHROOT", "CAP_SETFCAP"].map(Value::from);
                    list.expect("capabilities").extend(more);
                }
                if is_filtered {
                    config["linux"]["seccomp"] = seccomp();
                }
            });
            let container = oci.start_bundle(id, &bundle);
            let has_users = container.exec(&["unshare", "-Ur", "true"]).code() == Some(0);
            assert!(!(is_filtered && has_users));
            // A static program cannot load the simulated driver, but it has no shim either.
            let maps = |program| container.exec(&[program, "/proc/self/maps"]).exits(0).stdout;
            assert!(maps("cat").contains("/libcgpu.so"));
            let maps = maps("/opt/static");
            assert!(maps.contains("/opt/static") && !maps.contains("libcgpu"), "{maps}");
            let mut holders = Vec::new();
            for (way, open, filtered) in WAYS {
                let needs_users = way.starts_with("unshare");
                if needs_users && !is_filtered && !has_users {
                    skip(test, "unshare", "no user namespaces here");
                    continue;
                }
                let expected = if is_filtered { filtered } else { open };
                let outcome = container.exec(&["sh", "-c", &way.replace("PROGRAM", "init")]);
                let seen = match outcome.code() {
                    Some(0) if outcome.number("total") == 6043 * MIB => Seen::Limit,
                    // The driver reserves some of a GPU.
                    Some(0) if outcome.number("total") > 14 * 1024 * MIB => Seen::All,
                    Some(0) => panic!("{way}: {outcome:?}"),
                    _ => Seen::Nothing,
                };
                assert_eq!(seen, expected, "{way}, filtered: {is_filtered}: {outcome:?}");
                // The jail has a GPU of its own.
                if expected == Seen::All && !way.starts_with("chroot") {
                    // The image was changed by the same way before.
                    let way = way.replace("mv /etc /etc.old && mkdir /etc && ", "");
                    let hold = format!("exec {}", way.replace("PROGRAM", "hold 1G 240"));
                    let mut holder = container.spawn(&["sh", "-c", &hold]);
                    holder.line();
                    holders.push(holder);
                }
            }
            // The comparison with NVML finds each process that has left the shim.
            fixture.eventually("all are found", || {
                let all = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
                let ours = all.iter().filter(|one| {
                    one["container"] == id && one["cause"] == "unshimmed" && one["shim"] == "absent"
                });
                (ours.count() == holders.len()).then_some(())
            });
            drop(holders);
            container.delete();
        }
        // A read-only image cannot be changed.
        let bundle = oci.bundle("closed", SIX, &["sleep", "600"]);
        install(&bundle.join("rootfs"), &tools);
        let container = oci.start_bundle("closed", &bundle);
        let moved = container.exec(&["mv", "/etc", "/etc.old"]);
        assert!(moved.stderr.contains("Read-only"), "{moved:?}");
        container.delete();
        is_clean(&fixture);
    }

    /// Adds a program that prints a file, `/opt/static`, linked without a loader.
    fn add_static_program(rootfs: &Path) {
        let source = rootfs.join("opt/static.c");
        let text = "#include <stdio.h>\nint main(int count, char **names) {\n\
            FILE *file = fopen(names[1], \"r\");\n\
            for (int c; file && (c = getc(file)) != EOF;) putchar(c);\n\
            return file == NULL || count != 2;\n}\n";
        fs::write(&source, text).expect("a source");
        let mut compiler = Command::new("cc");
        compiler.args(["-static", "-o"]).arg(rootfs.join("opt/static")).arg(&source);
        Outcome::of(compiler).exits(0);
    }

    /// Adds an image in the image, with the driver and without cgpu.
    fn add_jail(fixture: &Fixture, rootfs: &Path) {
        let jail = rootfs.join("jail");
        for folder in ["bin", "tmp"] {
            fs::create_dir_all(jail.join(folder)).expect("a folder");
        }
        let programs = [find("env").expect("coreutils"), fixture.dist().program("init")];
        install(&jail, &programs);
        for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let file = fixture.dist().file(&format!("sim/{library}"));
            install(&jail, &[file]);
            let to = jail.join("lib64").join(library);
            fs::create_dir_all(jail.join("lib64")).expect("a folder");
            fs::rename(jail.join("bin").join(library), to).expect("a library");
        }
    }
}
