//! Containers with shares of GPUs, as a DRA driver prepares them.

use cgpu_e2e::skip;

use super::*;

with_each_runtime! {
    shares_of_claims_are_slices
    containers_with_one_share_have_one_limit
    process_without_run_cgpu_belongs_to_its_container
    share_that_is_not_prepared_starts_no_container
}

/// Writes the limits file of a share, as a DRA driver does.
pub(crate) fn prepare_share(fixture: &Fixture, name: &str, uuid: &str, mib: u64, weight: u32) {
    let folder = fixture.root().join("shares");
    fs::create_dir_all(&folder).expect("a folder");
    let text = format!("version 1\nweight {weight}\ngpu {uuid} {}\n", mib * MIB);
    fs::write(folder.join(name), text).expect("a limits file");
}

/// The hooks of a share's CDI device: when they run, and what they do.
pub(crate) const SHARE_HOOKS: [(&str, &str); 4] = [
    ("createRuntime", "plan"),
    ("createContainer", "mount"),
    ("poststart", "verify"),
    ("poststop", "clear"),
];

/// Returns a bundle with the CDI devices of shares, as an engine makes it.
pub(crate) fn bundle_of_shares(
    fixture: &Fixture,
    oci: &OciHost<'_>,
    id: &str,
    variables: &[&str],
    shares: &[&str],
) -> PathBuf {
    let bundle = oci.bundle(id, variables, &["sleep", "600"]);
    let program = fixture.dist().file("cgpu-runtime");
    change(&bundle, |config| {
        for (list, step) in SHARE_HOOKS {
            let hook = |share: &&str| {
                json!({ "path": program, "args": ["cgpu-runtime", "hook", "share", step, share,
                    "--config", oci.config()] })
            };
            config["hooks"][list] = shares.iter().map(hook).collect();
        }
    });
    bundle
}

/// Returns the UUIDs of the simulated GPUs that containers of `cgpu-runtime` get.
pub(crate) fn uuids(fixture: &Fixture, gpus: &str) -> Vec<String> {
    let states = fixture.root().join("gpus");
    fs::create_dir_all(&states).expect("a folder");
    let mut list = fixture.native(&fixture.dist().file("cgpu-monitor"));
    list.arg("--list-gpus").env("CGPU_SIM_STATE", states.join(gpus));
    let listed = Outcome::of(list).exits(0).stdout;
    let gpus: Vec<Value> = serde_json::from_str(&listed).expect("a list");
    gpus.iter().map(|gpu| gpu["uuid"].as_str().expect("a UUID").to_owned()).collect()
}

mod steps {
    use super::*;

    /// The runtime is the engine's own: it knows nothing of cgpu.
    pub(crate) fn shares_of_claims_are_slices(test: &str, runtime: Runtime) {
        let two = "T4:15109,T4:15109";
        let fixture = Fixture::new(two);
        let Some(oci) = OciHost::open(test, &fixture, runtime, two) else { return };
        let gpus = uuids(&fixture, two);
        let of = |id: &str, shares: &[&str]| bundle_of_shares(&fixture, &oci, id, SIX, shares);
        for (share, gpu, mib, weight) in
            [("u-0", 0, 2000, 1), ("u-1", 0, 1000, 2), ("v-0", 0, 4000, 3), ("v-1", 1, 500, 3)]
        {
            prepare_share(&fixture, share, &gpus[gpu], mib, weight);
        }
        // Those of one GPU add up. The variables of a pod's author count for nothing.
        let sum = oci.start_bare("sum", &of("sum", &["u-1", "u-0"]));
        assert_eq!(sizes(&sum, &["env", "-i", "/bin/meminfo"])[0], 3000);
        let limits = sum.exec(&["cat", "/run/cgpu/limits"]).exits(0).stdout;
        assert!(limits.contains("weight 3"), "{limits}");
        // Started by cgpu-runtime, as by another one.
        let both = oci.start_bundle("both", &of("both", &["v-0", "v-1"]));
        assert_eq!(sizes(&both, &["env", "-i", "/bin/meminfo"]), [4000, 500]);
        both.exec(&["hold", "3600M", "0"]).exits(0);
        let beyond = both.exec(&["hold", "4100M", "0"]);
        assert!(beyond.code() != Some(0), "{beyond:?}");
        for container in [sum, both] {
            container.delete();
        }
        is_clean(&fixture);
    }

    /// A claim that two containers name is one slice.
    pub(crate) fn containers_with_one_share_have_one_limit(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        prepare_share(&fixture, "u-0", &uuids(&fixture, T4)[0], 4000, 1);
        let start =
            |id: &str| oci.start_bare(id, &bundle_of_shares(&fixture, &oci, id, &[], &["u-0"]));
        let (one, two) = (start("one"), start("two"));
        let mut holding = one.spawn(&["hold", "2500M", "600"]);
        let _ = holding.line();
        let beyond = two.exec(&["hold", "2000M", "0"]);
        assert!(beyond.code() != Some(0), "{beyond:?}");
        two.exec(&["hold", "500M", "0"]).exits(0);
        // The one that came first leaves.
        drop(holding);
        one.delete();
        assert_eq!(sizes(&two, &["env", "-i", "/bin/meminfo"]), [4000]);
        let three = start("three");
        assert_eq!(sizes(&three, &["env", "-i", "/bin/meminfo"]), [4000]);
        two.delete();
        three.delete();
        is_clean(&fixture);
    }

    /// The folder has the name of a share. The engine's ids are in its record, which a monitor that
    /// starts later reads, too.
    pub(crate) fn process_without_run_cgpu_belongs_to_its_container(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        if !hierarchies.iter().any(|hierarchy| hierarchy.join("cgroup.procs").exists()) {
            return skip(test, "control-groups", "no control groups are mounted");
        }
        let host = fixture.path("").file_name().expect("a name").to_string_lossy().into_owned();
        prepare_share(&fixture, "u-0", &uuids(&fixture, T4)[0], 4000, 1);
        let ids = ["a1", "b2"].map(|digits| digits.repeat(32));
        let containers = ids.each_ref().map(|id| {
            let bundle = bundle_of_shares(&fixture, &oci, id, &[], &["u-0"]);
            add_foreign_loader(&bundle.join("rootfs"));
            fs::create_dir(bundle.join("rootfs/empty")).expect("a folder");
            change(&bundle, |config| {
                config["linux"]["cgroupsPath"] = format!("/{host}/docker/{id}").into();
                for kind in ["bounding", "effective", "permitted"] {
                    let list = config["process"]["capabilities"][kind].as_array_mut();
                    list.expect("capabilities").push("CAP_SYS_CHROOT".into());
                }
            });
            oci.start_bare(id, &bundle)
        });
        let holders = containers.each_ref().map(|container| {
            let hold = ["/opt/loader", "/bin/hold", "1G", "240", "/empty"];
            let mut holder = container.spawn(&hold);
            holder.line();
            holder
        });
        let _monitor = Monitor::start(&fixture);
        fixture.eventually("both belong to it", || {
            let all = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
            let is_ours = |one: &&Value| one["cause"] == "unshimmed" && one["container"] == "u-0";
            (all.iter().filter(is_ours).count() == 2).then_some(())
        });
        drop(holders);
        containers.into_iter().for_each(|container| container.delete());
        is_clean(&fixture);
    }

    pub(crate) fn share_that_is_not_prepared_starts_no_container(test: &str, runtime: Runtime) {
        let fixture = Fixture::new(T4);
        let Some(oci) = OciHost::open(test, &fixture, runtime, T4) else { return };
        prepare_share(&fixture, "u-0", &uuids(&fixture, T4)[0], 4000, 1);
        prepare_share(&fixture, "u-1", &uuids(&fixture, T4)[0], 20000, 1);
        prepare_share(&fixture, "u-2", "GPU-00000000-0000-0000-0000-000000000000", 4000, 1);
        for (id, shares, why) in [
            ("absent", &["u-0", "u-7"][..], "u-7 is not prepared"),
            ("room", &["u-1"], "do not fit"),
            ("gone", &["u-2"], "does not have the GPU"),
        ] {
            let bundle = bundle_of_shares(&fixture, &oci, id, &[], shares);
            let bundle = bundle.to_string_lossy();
            let refused = Outcome::of(oci.bare(&["run", "--bundle", &bundle, id]));
            assert!(refused.code() != Some(0), "{refused:?}");
            // crun does not pass on a hook's output.
            assert!(runtime == Runtime::Crun || refused.stderr.contains(why), "{refused:?}");
            let _ = Outcome::of(oci.bare(&["delete", "--force", id]));
        }
        is_clean(&fixture);
    }
}
