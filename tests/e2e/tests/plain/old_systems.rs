//! What is shipped, on systems that are older than the one that built it.
//!
//! Their root file systems are folders that CGPU_OLD_ROOTS names, with colons between, as `debootstrap --variant=minbase` makes them; the files are those of
//! `cargo xtask package`.

use std::path::PathBuf;
use std::process::Command;

use cgpu_e2e::{Dist, Outcome, mounted, skip};

#[test]
fn the_shim_and_the_programs_run_on_older_systems() {
    let test = "old_systems::the_shim_and_the_programs_run_on_older_systems";
    let portable = Dist::find().folder().join("portable");
    let names = ["libcgpu.so", "cgpu", "cgpu-monitor", "cgpu-runtime"];
    if !names.iter().all(|name| portable.join(name).exists()) {
        return skip(test, "zig", "no portable programs: `cargo xtask package` makes them");
    }
    let roots = std::env::var_os("CGPU_OLD_ROOTS").unwrap_or_default();
    let roots: Vec<PathBuf> =
        std::env::split_paths(&roots).filter(|root| root.join("bin/cat").exists()).collect();
    if roots.is_empty() {
        return skip(test, "old-roots", "CGPU_OLD_ROOTS names no root file systems of older systems");
    }
    for root in roots {
        // The folder of what was built stands where such a system has room for it, as long as the command runs.
        let place = root.join("mnt");
        let setup = format!(
            "mount --bind {} {} && mount -t proc proc {}/proc",
            portable.display(),
            place.display(),
            root.display()
        );
        let inside = |words: &[&str]| {
            let mut command = Command::new("chroot");
            command.arg(&root).args(words);
            mounted(&command, &setup).map(Outcome::of)
        };
        let Some(preloaded) = inside(&["env", "LD_PRELOAD=/mnt/libcgpu.so", "cat", "/proc/self/maps"]) else {
            return skip(test, "old-roots", "nothing can be mounted here");
        };
        // A loader that cannot load it says so, and goes on without.
        let preloaded = preloaded.silent();
        assert!(preloaded.stdout.contains("/libcgpu.so"), "{}: {preloaded:?}", root.display());
        for name in ["cgpu", "cgpu-monitor"] {
            let told = inside(&[&format!("/mnt/{name}"), "--version"]).expect("as before").exits(0);
            assert!(told.stdout.starts_with(name), "{}: {told:?}", root.display());
        }
        // Only a runtime to hand over to is lacking.
        let told = inside(&["/mnt/cgpu-runtime", "--version"]).expect("as before");
        assert!(told.stderr.contains("no runtime to hand over to"), "{}: {told:?}", root.display());
    }
}
