//! Starts that succeed, stay inactive or are refused: unusable regions, and the `limits` file.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::units::Bytes;

use crate::doubles::{Container, GPU, gpu};
use crate::{Inventory, Reason, Start, Tenant};

const LIMIT: [&str; 2] = ["ALIYUN_COM_GPU_MEM_CONTAINER=10", "CGPU_MEM_UNIT=MiB"];

fn on(container: &Container) -> Tenant {
    container.tenant()
}

fn off(container: &Container) -> Reason {
    match container.start() {
        Ok(Start::Off(reason)) => reason,
        other => panic!("expected to stay inactive, found {other:?}"),
    }
}

fn refused(container: &Container) -> String {
    match container.start() {
        Err(refusal) => refusal.message().to_owned(),
        Ok(start) => panic!("expected a refusal, found {start:?}"),
    }
}

/// Creates the region and corrupts it. With a limit, a start must be refused with `expected` in the
/// message; without one, it must stay inactive.
fn check_corrupted(expected: &str, corrupt: impl FnOnce(&Path)) {
    let mut container = Container::with(&LIMIT);
    drop(on(&container));
    corrupt(container.run());
    let said = refused(&container);
    assert!(said.contains(expected), "\n said:     {said}\n expected: {expected}");
    assert!(said.starts_with(container.run().to_str().expect("text")), "it names the file: {said}");
    container.environment.variables.clear();
    assert_eq!(off(&container), Reason::NoLimit);
}

fn overwrite(file: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(file).expect("it is there");
    file.write_all_at(bytes, offset).expect("it can be written");
}

#[test]
fn unusable_region_under_a_limit_is_refused() {
    check_corrupted("expected layout version", |run| {
        overwrite(&run.join("use"), 0, &99_u32.to_ne_bytes())
    });
    check_corrupted("expected layout version", |run| {
        overwrite(&run.join("grant"), 0, &99_u32.to_ne_bytes())
    });
    check_corrupted("not a cgpu file", |run| overwrite(&run.join("use"), 4, b"ELF!"));
    check_corrupted("truncated or replaced", |run| {
        let file = fs::OpenOptions::new().write(true).open(run.join("use")).expect("it is there");
        file.set_len(4096).expect("it can be cut");
    });
    check_corrupted("truncated or replaced", |run| {
        fs::write(run.join("use"), []).expect("it can be cut")
    });
    check_corrupted("still being created", |run| {
        overwrite(&run.join("use"), 0, &0_u32.to_ne_bytes())
    });
}

#[test]
fn unusable_directory_under_a_limit_is_refused() {
    let mut container = Container::with(&LIMIT);
    let missing = container.directory.path().join("no/such/place");
    container.environment.set(&[&format!("CGPU_DIR={}", missing.display())]);
    assert!(refused(&container).contains("no/such/place"));
    let file = container.directory.path().join("file");
    fs::write(&file, []).expect("a file");
    container.environment.set(&[&format!("CGPU_DIR={}", file.display())]);
    assert!(refused(&container).contains("file"));
    // No fall-back to the default: that would be a second container with a limit of its own.
    assert!(!container.run().join("use").exists());
    container.environment.variables.remove("ALIYUN_COM_GPU_MEM_CONTAINER");
    assert_eq!(off(&container), Reason::NoLimit);
}

#[test]
fn requested_directory_is_used() {
    let mut container = Container::with(&LIMIT);
    let requested = container.directory.path().join("requested");
    container.environment.set(&[&format!("CGPU_DIR={}", requested.display())]);
    let tenant = on(&container);
    assert_eq!(tenant.region().directory(), requested);
    assert!(requested.join("use").exists() && requested.join("grant").exists());
}

#[test]
fn shared_memory_is_used_where_the_default_is_unusable() {
    let container = Container::with(&LIMIT);
    // No file can be created in /run/cgpu.
    fs::remove_dir(container.run()).expect("it is empty");
    fs::write(container.run(), []).expect("a file");
    let tenant = on(&container);
    let shm = &container.environment.shared_memory_directory;
    assert!(tenant.region().directory().starts_with(shm));
    let name =
        tenant.region().directory().file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("cgpu-") && name.ends_with("-4026531836"), "{name}");
    let mode = fs::metadata(tenant.region().directory()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // The second process finds it there.
    assert_eq!(on(&container).region().directory(), tenant.region().directory());
}

#[test]
fn full_slot_table_under_a_limit_is_refused() {
    let container = Container::with(&LIMIT);
    let mut tenants: Vec<Tenant> = (0..256).map(|_| on(&container)).collect();
    let said = refused(&container);
    assert!(said.contains("expected a free slot, found all 256 taken"), "{said}");
    assert!(container.clock.slept().0 >= 1_000_000_000, "exited processes may free a slot");
    // One exits: its slot is free when its memory has drained.
    tenants.pop();
    drop(on(&container));
}

#[test]
fn too_many_gpus_are_refused() {
    let container = Container::with(&LIMIT);
    let tenant = on(&container);
    tenant.region().shared().header.gpus.store(16, Ordering::Relaxed);
    tenant.region().gpu(gpu()).uuid[0].store(0, Ordering::Relaxed);
    let said = refused(&container);
    assert!(said.contains("expected at most 16 GPUs"), "{said}");
}

#[test]
fn later_processes_have_the_limit_of_the_first() {
    let mut container = Container::with(&LIMIT);
    let first = on(&container);
    assert_eq!(first.view().limit(gpu()), Some(Bytes::from_mib(10)));
    // Another process with other variables does not change the limit.
    container.environment.set(&["ALIYUN_COM_GPU_MEM_CONTAINER=50"]);
    let second = on(&container);
    assert_eq!(second.view().limit(gpu()), Some(Bytes::from_mib(10)));
    // The next container in the same directory does.
    drop((first, second));
    drop(on(&container));
    container.clock.advance(cgpu_shm::units::Nanos::from_millis(600));
    assert_eq!(on(&container).view().limit(gpu()), Some(Bytes::from_mib(50)));
}

#[test]
fn process_without_a_limit_is_accounted_only_for_a_monitor() {
    let container = Container::with(&[]);
    assert_eq!(off(&container), Reason::NoLimit);
    assert!(!container.run().join("use").exists(), "nothing is created");
    cgpu_shm::region::Region::make(container.run(), Default::default()).expect("a region");
    assert_eq!(off(&container), Reason::NoLimit, "it is not adopted");
    GrantWriter::open(container.run()).expect("the grant file").adopt(1);
    let tenant = on(&container);
    let sliced = tenant.gpu(GPU.uuid).expect("all GPUs are accounted");
    assert_eq!(tenant.view().limit(sliced), None);
    assert_eq!(tenant.view().memory(sliced, Bytes(1)), None);
    assert!(tenant.charge(sliced, Bytes::from_mib(1 << 10)).is_ok(), "accounted, not limited");
}

#[test]
fn disabled_process_is_not_accounted_for_a_monitor() {
    for (variables, reason) in [
        (&["CGPU_DISABLE=1"][..], Reason::Disabled),
        (&["CGPU_DISABLE=perhaps"], Reason::Disabled),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=0"], Reason::NoLimit),
        (&["ALIYUN_COM_GPU_MEM_CONTAINER=3", "CGPU_DISABLE=true"], Reason::Disabled),
    ] {
        let container = Container::with(variables);
        cgpu_shm::region::Region::make(container.run(), Default::default()).expect("a region");
        GrantWriter::open(container.run()).expect("the grant file").adopt(1);
        assert_eq!(off(&container), reason, "{variables:?}");
    }
}

#[test]
fn refused_start_leaves_its_message_and_a_later_start_removes_it() {
    let mut container = Container::with(&["ALIYUN_COM_GPU_MEM_CONTAINER=lots"]);
    let refusal = container.start().expect_err("that is no number");
    let file = container.run().join("refused");
    assert!(!file.exists(), "until it is announced");
    refusal.announce();
    assert_eq!(fs::read_to_string(&file).expect("it is left"), format!("{refusal}\n"));
    container.environment.set(&LIMIT);
    drop(on(&container));
    assert!(!file.exists());
}

#[test]
fn message_of_a_refusal_is_not_written_through_a_link() {
    let container = Container::with(&["ALIYUN_COM_GPU_MEM_CONTAINER=lots"]);
    let victim = container.directory.path().join("victim");
    fs::write(&victim, "precious").expect("a file");
    symlink(&victim, container.run().join("refused")).expect("a link");
    container.start().expect_err("that is no number").announce();
    assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious");
}

/// Writes the `limits` file into the default directory, as the container's runtime does.
fn write_limits(container: &Container, text: &str) {
    let file = container.run().join("limits");
    fs::write(&file, text).expect("a file");
    // An unprivileged process must be able to read, but not write it.
    for path in [
        container.directory.path(),
        container.run(),
        &container.environment.shared_memory_directory,
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it is ours");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
}

fn is_root() -> bool {
    // SAFETY: no obligations; geteuid cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Runs `body` as a user that does not own the tests' files. Returns `false` if that is not
/// possible.
fn as_unprivileged(body: impl FnOnce() + Send) -> bool {
    const UNPRIVILEGED: libc::uid_t = 65534;
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: takes no pointers. The raw system call changes the calling thread alone,
                // which ends with this scope.
                let changed = unsafe {
                    libc::syscall(libc::SYS_setresuid, UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
                } == 0;
                if changed {
                    body();
                }
                changed
            })
            .join()
            .expect("no panic")
    })
}

#[test]
fn limits_file_precedes_all_variables() {
    let mut container =
        Container::with(&["ALIYUN_COM_GPU_MEM_CONTAINER=nonsense", "CGPU_DISABLE=1"]);
    container.environment.set(&["CGPU_DIR=/nowhere"]);
    write_limits(&container, &format!("version 1\nname trainer\ngpu {} 5242880\n", GPU.uuid));
    let ran = as_unprivileged(|| {
        let tenant = on(&container);
        assert_eq!(tenant.view().limit(gpu()), Some(Bytes::from_mib(5)));
        assert_eq!(tenant.region().directory(), container.run());
    });
    assert!(ran || !is_root(), "root can be another user");
    // Its owner could have written it, so the variables are in force for the owner.
    assert_eq!(off(&container), Reason::Disabled);
}

/// The container can write its region. The limit that is registered there was once the only one
/// that its processes kept, so a write into the file lifted it.
#[test]
fn write_into_the_region_lifts_no_limit_from_outside() {
    let container = Container::with(&[]);
    write_limits(&container, &format!("version 1\ngpu {} 5242880\n", GPU.uuid));
    let ran = as_unprivileged(|| {
        let tenant = on(&container);
        for registered in [Bytes::MAX, Bytes::ZERO, Bytes::from_mib(6)] {
            tenant.region().gpu(gpu()).limit.store(registered.0, Ordering::Relaxed);
            assert_eq!(tenant.view().limit(gpu()), Some(Bytes::from_mib(5)), "{registered:?}");
            assert!(tenant.charge(gpu(), Bytes::from_mib(6)).is_err());
        }
        // A lower limit only affects the container itself.
        tenant.region().gpu(gpu()).limit.store(1 << 20, Ordering::Relaxed);
        assert_eq!(tenant.view().limit(gpu()), Some(Bytes::from_mib(1)));
        // The monitor's limit precedes both.
        let grantor = GrantWriter::open(container.run()).expect("a monitor");
        grantor.gpu(gpu()).limit.store(8 << 20, Ordering::Relaxed);
        assert_eq!(tenant.view().limit(gpu()), Some(Bytes::from_mib(8)));
    });
    assert!(ran || !is_root(), "root can be another user");
}

#[test]
fn unparsable_limits_file_is_refused() {
    let over = format!("version 1\ngpu {} 999999999999\n", GPU.uuid);
    let many = (0..17).fold("version 1\n".to_owned(), |text, number| {
        format!("{text}gpu GPU-00000000-0000-0000-0000-0000000000{number:02x} 1024\n")
    });
    for (text, expected) in [
        (
            "",
            "line 1: expected `version 1` before anything else; correct it where the container is started",
        ),
        (
            "version 1\nweigth 3\n",
            "line 2: expected version, name, weight, percent, high_priority or gpu, found `weigth`",
        ),
        (
            over.as_str(),
            "expected at most the 104857600 bytes of GPU-07070707-0707-0707-0707-070707070707 (100 MiB), found 999999999999",
        ),
        (many.as_str(), "expected at most 16 GPUs, found 17"),
    ] {
        let container = Container::with(&[]);
        write_limits(&container, text);
        as_unprivileged(|| {
            let said = refused(&container);
            assert!(said.contains(expected), "\n said:     {said}\n expected: {expected}");
        });
    }
    // Not text at all.
    let container = Container::with(&[]);
    write_limits(&container, "");
    fs::write(container.run().join("limits"), [0xff, 0xfe, 0]).expect("a file");
    as_unprivileged(|| assert!(refused(&container).contains("expected text, but")));
    // Not readable.
    fs::set_permissions(container.run().join("limits"), fs::Permissions::from_mode(0o000))
        .expect("it is ours");
    as_unprivileged(|| {
        assert!(refused(&container).contains("expected a file that can be read, but"))
    });
}

#[test]
fn limits_file_without_gpus_leaves_all_native() {
    let container = Container::with(&LIMIT);
    write_limits(&container, "version 1\nweight 3\n");
    as_unprivileged(|| assert_eq!(off(&container), Reason::NoLimit));
}

#[test]
fn gpus_of_a_limits_file_need_not_be_visible() {
    let container = Container::with(&[]);
    let unseen = "GPU-11111111-0000-0000-0000-000000000000";
    write_limits(
        &container,
        &format!("version 1\ngpu {unseen} 7340032\ngpu {} 5242880\n", GPU.uuid),
    );
    as_unprivileged(|| {
        let tenant = on(&container);
        let gpu = tenant.gpu(unseen.parse().expect("a UUID")).expect("it is accounted");
        assert_eq!(tenant.view().limit(gpu), Some(Bytes::from_mib(7)));
        let gpu = tenant.gpu(GPU.uuid).expect("it is accounted");
        assert_eq!(tenant.view().limit(gpu), Some(Bytes::from_mib(5)));
    });
}

/// The GPU has been partitioned since the container was started: its instances would have no limit.
#[test]
fn gpu_of_a_limits_file_partitioned_since_is_refused() {
    let container = Container::with(&[]);
    let whole = "GPU-11111111-0000-0000-0000-000000000000";
    write_limits(&container, &format!("version 1\ngpu {whole} 7340032\n"));
    let ran = as_unprivileged(|| {
        let partitioned = [whole.parse().expect("a UUID")];
        let inventory = Inventory { gpus: &[GPU], partitioned: &partitioned, complete: true };
        let Err(refusal) = Tenant::start(&container.environment, inventory, container.clock) else {
            panic!("it has started")
        };
        let said = refusal.message();
        assert!(
            said.contains(&format!(
                "expected {whole} whole, found it partitioned into MIG instances"
            )),
            "{said}"
        );
        // Other partitioned GPUs do not matter.
        assert!(container.start().is_ok());
    });
    assert!(ran || !is_root(), "root can be another user");
}
