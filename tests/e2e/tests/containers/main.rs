//! Containers that crun and runc start through `cgpu-runtime`, on simulated GPUs.

use std::borrow::Cow;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use cgpu_e2e::{
    Child, Docker, Fixture, MIB, Monitor, OciContainer, OciHost, Outcome, Podman, Runtime,
    readme_commands,
};
use serde_json::{Value, json};

mod containerd;
mod docker;
mod documents;
mod podman;

const T4: &str = "T4:15109";
const SIX: &[&str] = &["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"];
const EIGHT: &[&str; 2] = &["ALIYUN_COM_GPU_MEM_CONTAINER=8", "ALIYUN_COM_GPU_MEM_DEV=15"];

macro_rules! with_each_runtime {
    ($($test:ident)*) => {$(
        mod $test {
            #[test]
            fn runc() {
                super::steps::$test(concat!(stringify!($test), "::runc"), cgpu_e2e::Runtime::Runc);
            }

            #[test]
            fn crun() {
                super::steps::$test(concat!(stringify!($test), "::crun"), cgpu_e2e::Runtime::Crun);
            }
        }
    )*};
}

mod borders;
mod hostile;
mod shares;
mod wall;

with_each_runtime! {
    two_containers_share_a_gpu
    limit_holds_for_every_process_of_a_container
    container_without_enforceable_limit_is_refused
    loader_without_preload_file_gets_ld_preload
    container_without_request_is_unchanged
    only_named_gpus_are_visible
    mig_instances_are_separate_devices
    monitor_lists_containers_by_id
    monitor_inventory_replaces_nvml
    container_refused_by_the_monitor_is_deleted
    cdi_hooks_make_the_same_slices
    concurrent_containers_leave_no_slices
}

/// Returns each GPU's size in MiB as the driver reports it to a program.
fn sizes(container: &OciContainer<'_>, arguments: &[&str]) -> Vec<u64> {
    let outcome = container.exec(arguments).exits(0);
    let total = |line: &str| {
        serde_json::from_str::<Value>(line).expect("JSON")["total"].as_u64().expect("a number")
    };
    outcome.stdout.lines().map(|line| total(line) / MIB).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|one| one.file_name().to_string_lossy().into_owned()).collect()
}

fn folders(fixture: &Fixture) -> Vec<String> {
    names(&fixture.root().join("containers"))
}

/// Waits until no folder, file and mount of the containers is left on this host.
fn is_clean(fixture: &Fixture) {
    fixture.wait_until_none("folders", || folders(fixture));
    for files in ["records", "slices"] {
        fixture.wait_until_none(files, || names(&fixture.root().join(files)));
    }
    let root = fixture.root().to_string_lossy().into_owned();
    fixture.wait_until_none("mounts", || mounts_below(&root));
}

fn change(bundle: &Path, how: impl FnOnce(&mut Value)) {
    let file = bundle.join("config.json");
    let mut config =
        serde_json::from_slice(&fs::read(&file).expect("a configuration")).expect("JSON");
    how(&mut config);
    fs::write(file, config.to_string()).expect("a configuration");
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find_map(|path| {
        let is_it = path.file_name().is_some_and(|other| other == name);
        if is_it { Some(path) } else { find(&path, name) }
    })
}

/// Adds a loader to an image, `/opt/loader`, that was built for another prefix.
fn add_foreign_loader(rootfs: &Path) {
    let usual = ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"];
    let usual = usual.iter().map(|name| rootfs.join(name)).find(|file| file.exists());
    let mut bytes = fs::read(usual.expect("a loader")).expect("a loader");
    let (known, other) = (b"/etc/ld.so.preload", b"/opt/ld.so.preload");
    for at in 0..bytes.len() - known.len() {
        if bytes[at..].starts_with(known) {
            bytes[at..at + other.len()].copy_from_slice(other);
        }
    }
    let loader = rootfs.join("opt/loader");
    fs::create_dir_all(rootfs.join("opt")).expect("a folder");
    fs::write(&loader, bytes).expect("a loader");
    let runnable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&loader, runnable).expect("it is ours");
}

fn mounts_below(folder: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
    mounts.lines().filter(|line| line.contains(folder)).map(str::to_owned).collect()
}

mod steps {
    use super::*;

    pub(crate) fn two_containers_share_a_gpu(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let (one, other) = (oci.start("one", SIX), oci.start("other", EIGHT));
        assert_eq!(sizes(&one, &["meminfo"]), [6043]);
        assert_eq!(sizes(&other, &["meminfo"]), [8058]);
        for (container, limit) in [(&one, 6043 * MIB), (&other, 8058 * MIB)] {
            let filled = container.exec(&["alloc_fill", "64M"]).silent();
            assert_eq!(filled.number("error"), 2);
            assert!(
                filled.number("granted") <= limit && filled.number("granted") > limit - 1088 * MIB,
                "{filled:?}"
            );
        }
        let variables = one.exec(&["env"]).exits(0).stdout;
        assert!(variables.contains("ALIYUN_COM_GPU_MEM_DEV=15\n"), "{variables}");
        one.delete();
        assert!(oci.folder("other").exists());
        other.delete();
        is_clean(&fixture);
    }

    pub(crate) fn limit_holds_for_every_process_of_a_container(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let container = oci.start("one", SIX);
        for way in [
            &["meminfo"][..],
            &["env", "-i", "/bin/meminfo"],
            &["env", "-i", "/bin/sh", "-c", "exec /bin/meminfo"],
            &["env", "-i", "CGPU_DISABLE=1", "ALIYUN_COM_GPU_MEM_CONTAINER=0", "/bin/meminfo"],
            &["env", "CGPU_DIR=/dev/shm", "ALIYUN_COM_GPU_MEM_CONTAINER=15", "/bin/meminfo"],
            &["env", "LD_PRELOAD=", "/bin/meminfo"],
        ] {
            assert_eq!(sizes(&container, way), [6043], "{way:?}");
        }
        let other_user = Outcome::of(oci.runtime(&[
            "exec",
            "--user",
            "1000:1000",
            "one",
            "env",
            "-i",
            "/bin/init",
        ]));
        assert_eq!(other_user.exits(0).number("total"), 6043 * MIB);
        for attempt in [
            "echo version 1 > /run/cgpu/limits",
            "echo > /run/cgpu/grant",
            "echo > /run/cgpu/new",
            "echo > /etc/ld.so.preload",
        ] {
            let outcome = container.exec(&["sh", "-c", attempt]);
            assert!(
                outcome.code() != Some(0) && outcome.stderr.contains("Read-only"),
                "{outcome:?}"
            );
        }
        container.delete();
        is_clean(&fixture);
    }

    pub(crate) fn container_without_enforceable_limit_is_refused(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        for (variables, part) in [
            (
                &["ALIYUN_COM_GPU_MEM_CONTAINER=six"][..],
                "ALIYUN_COM_GPU_MEM_CONTAINER is `six`, expected whole numbers",
            ),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=-1"], "is `-1`"),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=16"], "more than GPU 0 has"),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=1", "NVIDIA_VISIBLE_DEVICES=1"], "there is no GPU 1"),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_SCHD_WEIGHT=26"], "from 1 to 25"),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_CONTAINER=2"], "is set twice"),
        ] {
            let message = oci.refused("bad", variables);
            assert!(message.contains(part) && !message.contains('\n'), "{message}");
        }
        for (libc, part) in [("lib/ld-musl-x86_64.so.1", "musl"), ("nothing", "no glibc")] {
            let bundle = oci.bundle("bare", SIX, &["true"]);
            let rootfs = bundle.join("rootfs");
            for folder in ["lib", "lib64", "usr/lib", "usr/lib64"] {
                let _ = fs::remove_dir_all(rootfs.join(folder));
            }
            fs::create_dir_all(rootfs.join("lib")).expect("a folder");
            fs::write(rootfs.join(libc), "").expect("a file");
            let message = oci.refused_bundle("bare", &bundle);
            assert!(message.contains(part), "{message}");
        }
        // An image whose C library is older than the shim needs: each of its versions has a digit
        // replaced.
        let bundle = oci.bundle("aged", SIX, &["true"]);
        let library = find(&bundle.join("rootfs"), "libc.so.6").expect("a C library");
        let mut bytes = fs::read(&library).expect("a C library");
        for at in 0..bytes.len() - 10 {
            let version = &bytes[at..at + 10];
            if version.starts_with(b"GLIBC_2.") && version[8..].iter().all(u8::is_ascii_digit) {
                bytes[at + 8] = b'0';
            }
        }
        fs::write(&library, bytes).expect("a C library");
        let message = oci.refused_bundle("aged", &bundle);
        assert!(message.contains("the image has glibc 2.9, and libcgpu.so needs 2."), "{message}");
        // Configurations that would hide cgpu's files, or leave them unreadable.
        for (name, value, part) in [
            (
                "maskedPaths",
                json!(["/proc/kcore", "/etc/ld.so.preload"]),
                "masks /etc/ld.so.preload",
            ),
            ("maskedPaths", json!(["/etc"]), "masks /etc"),
            ("maskedPaths", json!(["/run/cgpu/limits"]), "masks /run/cgpu/limits"),
            ("namespaces", json!([{"type": "pid"}]), "no mount namespace of its own"),
        ] {
            let bundle = oci.bundle("odd", SIX, &["true"]);
            change(&bundle, |config| config["linux"][name] = value);
            let message = oci.refused_bundle("odd", &bundle);
            assert!(message.contains(part), "{message}");
        }
        // A loader that is mounted from the bundle, by a path that begins there.
        let bundle = oci.bundle("odd", SIX, &["true"]);
        fs::create_dir(bundle.join("musl")).expect("a folder");
        change(&bundle, |config| {
            let mounts = config["mounts"].as_array_mut().expect("mounts");
            for to in ["/lib", "/lib64", "/usr/lib", "/usr/lib64"] {
                mounts
                    .push(json!({"destination": to, "type": "bind", "source": "musl", "options": ["bind"]}));
            }
        });
        let message = oci.refused_bundle("odd", &bundle);
        assert!(message.contains("no glibc"), "{message}");
        let container = oci.start("one", EIGHT);
        let message = oci.refused("two", EIGHT);
        assert!(
            message.contains("GPU 0 has 15109 MiB, of which 8058 MiB are given to 1 containers"),
            "{message}"
        );
        container.delete();
        oci.start("two", EIGHT).delete();
        is_clean(&fixture);
    }

    /// Some distributions have patched their loader. A login would clear the variable, so such an
    /// image is started only where the host allows it.
    pub(crate) fn loader_without_preload_file_gets_ld_preload(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let bundle = oci.bundle("changed", SIX, &["sleep", "600"]);
        let (known, other) = (b"/etc/ld.so.preload", b"/etc/ld.no.preload");
        for name in ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"] {
            let Ok(mut bytes) = fs::read(bundle.join("rootfs").join(name)) else { continue };
            let found: Vec<usize> = (0..bytes.len() - known.len())
                .filter(|at| bytes[*at..].starts_with(known))
                .collect();
            found.into_iter().for_each(|at| bytes[at..at + other.len()].copy_from_slice(other));
            fs::write(bundle.join("rootfs").join(name), bytes).expect("a loader");
        }
        let message = oci.refused_bundle("changed", &bundle);
        assert!(message.contains("the image's loader reads no /etc/ld.so.preload"), "{message}");

        let config = fs::read_to_string(oci.config()).expect("a configuration");
        fs::write(oci.config(), format!("{config}ld_preload = true\n")).expect("a configuration");
        let container = oci.start_bundle("changed", &bundle);
        assert_eq!(sizes(&container, &["meminfo"]), [6043]);
        // Engines start further processes with their own variables.
        let process = fixture.path("process.json");
        let text = serde_json::json!({"args": ["/bin/init"], "env": ["A=1"], "cwd": "/", "user": {"uid": 0, "gid": 0}});
        fs::write(&process, text.to_string()).expect("a process");
        let more = oci.runtime(&["exec", "--process", &process.to_string_lossy(), "changed"]);
        assert_eq!(Outcome::of(more).exits(0).number("total"), 6043 * MIB);
        container.delete();
        is_clean(&fixture);
    }

    pub(crate) fn container_without_request_is_unchanged(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        for variables in [
            &[][..],
            &["ALIYUN_COM_GPU_MEM_CONTAINER=0"],
            &["ALIYUN_COM_GPU_MEM_CONTAINER=6", "CGPU_DISABLE=1"],
        ] {
            let bundle = oci.bundle("plain", variables, &["sleep", "600"]);
            let before = fs::read(bundle.join("config.json")).expect("a configuration");
            let container = oci.start_bundle("plain", &bundle);
            assert_eq!(fs::read(bundle.join("config.json")).expect("a configuration"), before);
            let maps = container.exec(&["cat", "/proc/self/maps"]).exits(0).stdout;
            assert!(!maps.contains("cgpu"), "{maps}");
            assert!(!oci.folder("plain").exists());
            container.delete();
        }
    }

    pub(crate) fn only_named_gpus_are_visible(test: &str, runtime: Runtime) {
        let four = "V100:16130,V100:16130,V100:16130,V100:16130";
        let fixture = Fixture::new(four);
        let Some(oci) = OciHost::open(test, &fixture, runtime, four) else { return };
        let native = oci.start("native", &[]);
        assert!(
            native.exec(&["meminfo"]).code() != Some(0),
            "without a slice no driver is brought"
        );
        native.delete();
        let whole = u64::MAX;
        for (variables, expected) in [
            (
                &[
                    "ALIYUN_COM_GPU_MEM_CONTAINER=2",
                    "ALIYUN_COM_GPU_MEM_DEV=15",
                    "NVIDIA_VISIBLE_DEVICES=0,1,2,3",
                ][..],
                [2150; 4],
            ),
            (&["ALIYUN_COM_GPU_MEM_CONTAINER=3,1"], [3072, 1024, 1024, 1024]),
            (
                &["ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5,6", "NVIDIA_VISIBLE_DEVICES=3,2,1,0"],
                [6144, 5120, 4096, 3072],
            ),
            (
                &[
                    "ALIYUN_COM_GPU_MEM_CONTAINER=3",
                    "NVIDIA_VISIBLE_DEVICES=0,1,2",
                    "ALIYUN_COM_GPU_VISIBLE_DEVICES=2",
                ],
                [whole, whole, 3072, whole],
            ),
        ] {
            let container = oci.start("one", variables);
            let mut found = sizes(&container, &["env", "-i", "/bin/meminfo"]);
            found.iter_mut().filter(|size| **size > 15000).for_each(|size| *size = whole);
            assert_eq!(found, expected, "{variables:?}");
            container.delete();
        }
        is_clean(&fixture);
    }

    /// The MIG instances of a partitioned GPU are named by their own UUIDs.
    pub(crate) fn mig_instances_are_separate_devices(test: &str, runtime: Runtime) {
        let partitioned = "T4:15109,A100:40960/mig=3g.20gb,1g.5gb";
        let fixture = Fixture::new(partitioned);
        let Some(oci) = OciHost::open(test, &fixture, runtime, partitioned) else { return };
        let memory = |value: &str| format!("ALIYUN_COM_GPU_MEM_CONTAINER={value}");
        // All devices, with their names from the accounting. A program that names none sees whole
        // GPUs only.
        let container = oci.start("all", &[&memory("3,4,2")]);
        assert_eq!(sizes(&container, &["meminfo"]), [3072]);
        let shown = fixture.smi();
        let gpus = shown["containers"][0]["gpus"].as_array().expect("gpus").clone();
        let limits: Vec<_> =
            gpus.iter().map(|gpu| gpu["limit"].as_u64().expect("a limit") / MIB).collect();
        assert_eq!(limits, [3072, 4096, 2048], "{shown:#}");
        let names: Vec<String> = gpus
            .iter()
            .map(|gpu| gpu["uuid"].as_str().expect("a UUID").replacen("GPU", "MIG", 1))
            .collect();
        for (name, limit) in names.iter().zip(limits).skip(1) {
            let chosen = format!("CUDA_VISIBLE_DEVICES={name}");
            assert_eq!(sizes(&container, &["env", &chosen, "/bin/meminfo"]), [limit], "{name}");
        }
        container.delete();
        let (big, small) = (&names[1], &names[2][..12]);
        let visible = |list: &str| format!("NVIDIA_VISIBLE_DEVICES={list}");
        let chosen = |name: &str| format!("CUDA_VISIBLE_DEVICES={name}");
        let half = [&memory("1")[..], "ALIYUN_COM_GPU_MEM_DEV=2", &visible(big), &chosen(big)];
        let half = oci.start("half", &half);
        assert_eq!(sizes(&half, &["meminfo"]), [20480 / 2]);
        let both =
            oci.start("both", &[&memory("1,2"), &visible(&format!("{small},{big}")), &chosen(big)]);
        assert_eq!(sizes(&both, &["meminfo"]), [2048]);
        let refused = oci.refused("more", &[&memory("9"), &visible(big)]);
        assert!(
            refused.contains("has 20480 MiB, of which 12288 MiB are given to 2 containers"),
            "{refused}"
        );
        let native = [
            &memory("1,2"),
            &visible(&format!("{small},{big}")),
            &format!("ALIYUN_COM_GPU_VISIBLE_DEVICES={small}"),
        ];
        let native = oci.start("native", &native.map(|variable| &variable[..]));
        // The driver reserves some of a GPU.
        let whole = sizes(&native, &["env", &chosen(big), "/bin/meminfo"]);
        assert!(whole.len() == 1 && whole[0] > 19 * 1024, "{whole:?}");
        assert_eq!(sizes(&native, &["env", &chosen(&names[2]), "/bin/meminfo"]), [1024]);
        for (list, part) in
            [("1", "GPU 1 is partitioned into MIG instances"), ("2", "there is no GPU 2")]
        {
            let refused = oci.refused("bad", &[&memory("1"), &visible(list)]);
            assert!(refused.contains(part), "{refused}");
        }
        half.delete();
        both.delete();
        native.delete();
        is_clean(&fixture);
    }

    pub(crate) fn monitor_lists_containers_by_id(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let id = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789ab0123";
        let with_weight = [SIX, &["ALIYUN_COM_GPU_SCHD_WEIGHT=2"]].concat();
        let early = oci.start("early", EIGHT);
        let _monitor = Monitor::start(&fixture);
        let container = oci.start(id, &with_weight);
        let mut held = container.spawn(&["hold", "1G", "60"]);
        held.line();
        let seen = fixture.eventually("the monitor has seen what the container holds", || {
            let all = fixture.smi();
            let mine = all["containers"]
                .as_array()?
                .iter()
                .find(|one| one["id"] == "0123456789ab")?
                .clone();
            (mine["gpus"][0]["used"].as_u64()? >= 1024 * MIB).then_some(mine)
        });
        assert_eq!((&seen["weight"], &seen["gpus"][0]["limit"]), (&2.into(), &(6043 * MIB).into()));
        let other = fixture.smi();
        let ids: Vec<_> = other["containers"]
            .as_array()
            .expect("containers")
            .iter()
            .map(|one| one["id"].clone())
            .collect();
        assert!(ids.contains(&"early".into()), "{ids:?}");
        drop(held);
        container.delete();
        early.delete();
        fixture.eventually("the monitor has forgotten them", || {
            fixture.smi()["containers"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
        is_clean(&fixture);
    }

    /// Where NVML fails, a container is started only if a monitor knows the GPUs. For a request
    /// that does not fit those, NVML is queried all the same.
    pub(crate) fn monitor_inventory_replaces_nvml(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let run = |variables: &[&str]| {
            let bundle = oci.bundle("one", variables, &["/bin/meminfo"]);
            let mut command = oci.runtime(&["run", "--bundle", &bundle.to_string_lossy(), "one"]);
            command.env("CGPU_SIM_FAULT", "nvmlDeviceGetCount_v2:1+:999");
            Outcome::of(command)
        };
        let alone = run(SIX);
        assert!(
            alone.code() == Some(1)
                && alone.stderr.contains("NVML reports none of this host's GPUs"),
            "{alone:?}"
        );
        // The monitor and the containers have the same simulated GPUs only where both are
        // configured so.
        let other = Fixture::new(T4);
        let foreign = Monitor::start(&other);
        fs::create_dir_all(fixture.root()).expect("a folder");
        std::os::unix::fs::symlink(
            other.root().join("monitor.sock"),
            fixture.root().join("monitor.sock"),
        )
        .expect("a link");
        let foreign_gpus = run(SIX);
        assert!(
            foreign_gpus.code() == Some(1)
                && foreign_gpus.stderr.contains("NVML reports none of this host's GPUs"),
            "{foreign_gpus:?}"
        );
        fs::remove_file(fixture.root().join("monitor.sock")).expect("the link is ours");
        drop(foreign);

        let _monitor = Monitor::start(&fixture);
        let inside = fixture.eventually("the monitor reports the GPUs", || {
            let outcome = run(SIX);
            (outcome.code() == Some(0)).then(|| outcome.number("total"))
        });
        assert_eq!(inside, 6043 * MIB);
        let refused = run(&["ALIYUN_COM_GPU_MEM_CONTAINER=16"]);
        assert!(
            refused.code() == Some(1)
                && refused.stderr.contains("NVML reports none of this host's GPUs"),
            "{refused:?}"
        );
        is_clean(&fixture);
    }

    /// A container that the monitor refuses is deleted before it can be started: by hooks, and
    /// where an engine gets the first process.
    pub(crate) fn container_refused_by_the_monitor_is_deleted(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        fs::create_dir_all(fixture.root()).expect("a folder");
        let socket = UnixListener::bind(fixture.root().join("monitor.sock")).expect("a socket");
        std::thread::spawn(move || {
            for stream in socket.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines();
                while let Some(Ok(_)) = lines.next() {
                    let refusal = serde_json::json!({"refused": {"errno": "EBUSY", "message": "The GPU is full."}});
                    let _ = (&stream).write_all(format!("{refusal}\n").as_bytes());
                }
            }
        });
        let bundle = oci.bundle("late", SIX, &["sleep", "600"]).to_string_lossy().into_owned();
        let pid = fixture.path("pid").to_string_lossy().into_owned();
        for more in [&["--pid-file", &pid[..]][..], &[]] {
            let log = fixture.path("log").to_string_lossy().into_owned();
            let words = [&["--log", &log, "create", "--bundle", &bundle], more, &["late"]].concat();
            let outcome = oci.quiet(&words);
            let printed = fs::read_to_string(&log).unwrap_or_default() + &outcome.stderr;
            assert!(outcome.code() != Some(0), "{outcome:?}");
            // crun does not pass on a hook's output.
            assert!(
                (runtime == Runtime::Crun && more.is_empty())
                    || printed.contains("The GPU is full."),
                "{printed}"
            );
            let state = Outcome::of(oci.runtime(&["state", "late"]));
            assert!(state.code() != Some(0), "it is there: {state:?}");
            assert!(!oci.folder("late").exists());
        }
        is_clean(&fixture);
    }

    /// As an engine does with `--device cgpu.dev/slice=...`: it applies the device's CDI edits and
    /// knows nothing else of cgpu.
    pub(crate) fn cdi_hooks_make_the_same_slices(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let config = oci.config().to_string_lossy().into_owned();
        let generate = ["cdi", "generate", "--gib", "6", "--config", &config];
        let printed = Outcome::of(fixture.cgpu(&generate)).silent().stdout;
        let specification: Value = serde_json::from_str(&printed).expect("JSON");
        let with_device = |id: &str, name: &str, variables: &[&str]| {
            let bundle = oci.bundle(id, variables, &["sleep", "600"]);
            let devices = specification["devices"].as_array().expect("devices");
            let edits = &devices.iter().find(|one| one["name"] == *name).expect("the device")["containerEdits"];
            let file = bundle.join("config.json");
            let text = fs::read(&file).expect("a configuration");
            let mut config: Value = serde_json::from_slice(&text).expect("JSON");
            for variable in edits["env"].as_array().into_iter().flatten() {
                config["process"]["env"].as_array_mut().expect("variables").push(variable.clone());
            }
            for hook in edits["hooks"].as_array().expect("hooks") {
                let name = hook["hookName"].as_str().expect("a name");
                config["hooks"][name] =
                    serde_json::json!([{"path": hook["path"], "args": hook["args"]}]);
            }
            fs::write(&file, config.to_string()).expect("a configuration");
            bundle
        };
        let six = oci.start_bare("six", &with_device("six", "6GiB", &[]));
        let eight = oci.start_bare("eight", &with_device("eight", "all", EIGHT));
        assert_eq!(sizes(&six, &["env", "-i", "/bin/meminfo"]), [6144]);
        assert_eq!(sizes(&eight, &["env", "-i", "/bin/meminfo"]), [8058]);
        let outcome = six.exec(&["sh", "-c", "echo > /run/cgpu/limits"]);
        assert!(outcome.stderr.contains("Read-only"), "{outcome:?}");
        // An invalid setting starts no container. crun does not pass on a hook's output.
        let bad = with_device("bad", "all", &["ALIYUN_COM_GPU_MEM_CONTAINER=six"]);
        let refused = Outcome::of(oci.bare(&["run", "--bundle", &bad.to_string_lossy(), "bad"]));
        assert!(refused.code() != Some(0), "{refused:?}");
        assert!(
            runtime == Runtime::Crun || refused.stderr.contains("is `six`, expected"),
            "{refused:?}"
        );
        eight.delete();
        let both = oci.start_bundle("both", &with_device("both", "all", EIGHT));
        assert_eq!(sizes(&both, &["env", "-i", "/bin/meminfo"]), [8058]);
        both.delete();
        let none = oci.start_bare("none", &with_device("none", "all", &[]));
        assert!(!none.exec(&["cat", "/proc/self/maps"]).exits(0).stdout.contains("cgpu"));
        none.delete();
        Outcome::of(oci.bare(&["delete", "--force", "six"])).exits(0);
        std::mem::drop(six);
        is_clean(&fixture);
    }

    pub(crate) fn concurrent_containers_leave_no_slices(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let small = ["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=15"];
        std::thread::scope(|scope| {
            for thread in 0..5 {
                let oci = &oci;
                scope.spawn(move || {
                    for round in 0..10 {
                        let container = oci.start(&format!("s{thread}-{round}"), &small);
                        if round % 2 == 0 {
                            container.exec(&["init"]).exits(0);
                        }
                        container.delete();
                    }
                });
            }
        });
        is_clean(&fixture);
    }
}
