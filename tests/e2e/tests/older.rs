//! Release files on systems older than the build system, with their C library, loader and tools.
//!
//! `cargo xtask test --full --only portable` makes the root file systems and the files, and names
//! both: CGPU_OLD_ROOTS (separated by colons) and CGPU_DIST. Root file systems of `debootstrap
//! --variant=minbase` work as well.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Dist, Fixture, MIB, OciHost, Outcome, Runtime, mounted, skip};
use serde_json::{Value, json};

const T4: &str = "T4:15109";
const SIX: &[&str] = &["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"];
const START: Duration = Duration::from_secs(60);

struct Older {
    root: PathBuf,
}

/// Returns the systems of CGPU_OLD_ROOTS, or none after recording the skip.
fn systems(test: &str) -> Vec<Older> {
    let named = std::env::var_os("CGPU_OLD_ROOTS").unwrap_or_default();
    let roots = std::env::split_paths(&named).filter(|root| root.join("bin/cat").exists());
    let systems: Vec<Older> = roots.map(|root| Older { root }).collect();
    if systems.is_empty() {
        skip(test, "old-roots", "CGPU_OLD_ROOTS names no root file systems of older systems");
    } else if mounted(&Command::new("true"), "true").is_none() {
        skip(test, "old-roots", "nothing can be mounted here");
        return Vec::new();
    }
    systems
}

fn new_shim() -> Option<PathBuf> {
    std::env::var_os("CGPU_NEW_SHIM").map(PathBuf::from)
}

impl Older {
    /// Wraps a command to run on the older system, with the built files at their paths here and
    /// this host's devices and memory.
    fn within(&self, command: &Command) -> Command {
        let folder = |file: &Path| file.parent().map(Path::to_path_buf);
        let folders =
            [Some(Dist::find().folder().to_path_buf()), new_shim().as_deref().and_then(folder)];
        let mut setup = String::new();
        let root = self.root.display();
        for folder in folders.iter().flatten() {
            let folder = std::path::absolute(folder).expect("a path");
            let folder = folder.display();
            setup +=
                &format!("mkdir -p {root}{folder} && mount --bind {folder} {root}{folder} && ");
        }
        setup += &format!("mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev");
        let mut inside = Command::new("chroot");
        inside.arg(&self.root).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        mounted(&inside, &setup).expect("it could be mounted before")
    }

    fn run(&self, command: &Command) -> Outcome {
        Outcome::of(self.within(command))
    }

    fn preloading(&self, shim: &Path) -> Outcome {
        let mut command = Command::new("cat");
        command.arg("/proc/self/maps").env("LD_PRELOAD", shim);
        self.run(&command)
    }
}

#[test]
fn shim_loads_and_programs_start() {
    for older in systems("older::shim_loads_and_programs_start") {
        let (dist, name) = (Dist::find(), older.root.display());
        // A loader that cannot preload the file writes an error.
        let preloaded = older.preloading(&dist.file("libcgpu.so")).silent();
        assert!(preloaded.stdout.contains("/libcgpu.so"), "{name}: {preloaded:?}");
        let version = |program: &str| {
            let mut command = Command::new(dist.file(program));
            command.arg("--version");
            older.run(&command)
        };
        for program in ["cgpu", "cgpu-monitor"] {
            let output = version(program).exits(0);
            assert!(output.stdout.starts_with(program), "{name}: {output:?}");
        }
        let output = version("cgpu-runtime");
        assert!(output.stderr.contains("no runtime to hand over to"), "{name}: {output:?}");
    }
}

#[test]
fn limit_holds_and_monitor_reports_it() {
    for older in systems("older::limit_holds_and_monitor_reports_it") {
        let fixture = Fixture::new(T4);
        assert!(
            fixture.path("").starts_with("/dev/shm"),
            "there is memory wherever containers are"
        );
        let root = fixture.root().to_string_lossy().into_owned();
        let container = fixture
            .container("old")
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", "6")
            .with("ALIYUN_COM_GPU_MEM_DEV", "15");
        let mut monitor = fixture.native(&fixture.dist().file("cgpu-monitor"));
        std::fs::write(fixture.path("monitor.toml"), "tree = \"none\"\nmetrics = \"off\"\n")
            .expect("a configuration");
        monitor.args(["--root", &root, "--config"]).arg(fixture.path("monitor.toml"));
        let mut monitor = Child::start_for(older.within(&monitor), fixture.lifetime());
        let smi = || older.run(&fixture.cgpu(&["smi", "--json", "--root", &root])).silent().json();
        let deadline = Instant::now() + START;
        while smi()["monitor"] != true {
            assert!(monitor.runs(), "the monitor has ended: {:?}", monitor.kill());
            assert!(Instant::now() < deadline, "the monitor does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let seen = older.run(&fixture.program_in(&container, "meminfo")).silent();
        assert_eq!(seen.number("total"), 6043 * MIB);
        let mut filling = fixture.program_in(&container, "alloc_fill");
        filling.arg("64M");
        let filled = older.run(&filling).silent();
        assert_eq!(filled.number("error"), 2, "{filled:?}");
        assert!(filled.number("granted") <= 6043 * MIB, "{filled:?}");
        let mut holding = fixture.program_in(&container, "hold");
        holding.arg("1G");
        let mut held = Child::start(older.within(&holding));
        held.line();
        fixture.eventually("the monitor sees what is held", || {
            let all = smi();
            let mine = all["containers"].as_array()?.iter().find(|one| one["id"] == "old")?.clone();
            (mine["gpus"][0]["used"].as_u64()? >= 1024 * MIB).then_some(())
        });
    }
}

fn bundle(oci: &OciHost<'_>, older: &Older, id: &str) -> PathBuf {
    let bundle = oci.bundle(id, SIX, &["sleep", "600"]);
    let file = bundle.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a configuration")).expect("JSON");
    config["root"]["path"] = older.root.to_string_lossy().into();
    let programs = Dist::find().folder().join("programs");
    let mounts = config["mounts"].as_array_mut().expect("mounts");
    mounts
        .push(json!({"destination": "/mnt", "type": "bind", "source": programs, "options": ["bind", "ro"]}));
    std::fs::write(file, config.to_string()).expect("a configuration");
    bundle
}

#[test]
fn containers_with_older_images_have_slices() {
    let test = "older::containers_with_older_images_have_slices";
    for older in systems(test) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, Runtime::Runc, T4) else { return };
        let container = oci.start_bundle("old", &bundle(&oci, &older, "old"));
        let seen = container.exec(&["/usr/bin/env", "-i", "/mnt/meminfo"]).silent();
        assert_eq!(seen.number("total"), 6043 * MIB);
        let filled = container.exec(&["/mnt/alloc_fill", "64M"]).silent();
        assert!(
            filled.number("error") == 2 && filled.number("granted") <= 6043 * MIB,
            "{filled:?}"
        );
        container.delete();
    }
}

/// The shim cannot be loaded there, so a container would run without its limit.
#[test]
fn image_too_old_for_the_shim_is_refused() {
    let test = "older::image_too_old_for_the_shim_is_refused";
    let Some(shim) = new_shim() else {
        return skip(test, "old-roots", "CGPU_NEW_SHIM names no shim of this system");
    };
    for older in systems(test) {
        let preloaded = older.preloading(&shim);
        if preloaded.stdout.contains("/libcgpu.so") {
            // That system is not older than this one.
            continue;
        }
        assert!(preloaded.stderr.contains("not found"), "{preloaded:?}");
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, Runtime::Runc, T4) else { return };
        let config = std::fs::read_to_string(oci.config()).expect("a configuration");
        std::fs::write(oci.config(), format!("{config}shim = {shim:?}\n"))
            .expect("a configuration");
        let message = oci.refused_bundle("old", &bundle(&oci, &older, "old"));
        assert!(
            message.contains("the image has glibc 2.")
                && message.contains("and libcgpu.so needs 2."),
            "{message}"
        );
    }
}
