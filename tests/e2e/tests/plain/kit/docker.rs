//! The rows that install cgpu in a copy of the host, with a Docker daemon of its own.

use super::*;

/// Returns whether the kit can start a Docker daemon here; records the skip otherwise.
pub(super) fn has_docker(test: &str) -> bool {
    // SAFETY: no obligations; geteuid cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let lacks = ["dockerd", "docker", "unshare", "nsenter"].map(|name| find(name).is_none());
    let has = is_root && !lacks.contains(&true) && !Path::new("/usr/lib/cgpu/installed").exists();
    if !has {
        skip(test, "docker", "the kit's Docker rows need root, Docker, and no cgpu on the host");
    }
    has
}

/// Returns a row's cases that are held.
fn held_cases(row: &Value) -> Vec<&str> {
    let cases = row["data"]["cases"].as_object().into_iter().flatten();
    cases.filter(|(_, one)| one["result"] == "held").map(|(title, _)| &**title).collect()
}

/// Returns which of the files that an installation makes are on this host.
fn installed_here() -> [bool; 4] {
    ["/usr/bin/cgpu", "/usr/lib/cgpu", "/etc/cgpu", "/etc/docker/daemon.json"]
        .map(|place| Path::new(place).exists())
}

#[test]
fn installed_cgpu_limits_containers_and_uninstalling_leaves_them() {
    let test = "installed_cgpu_limits_containers_and_uninstalling_leaves_them";
    let Some(kit) = Kit::new(test) else { return };
    let has_docker = has_docker(test);
    let before = installed_here();
    let outcome =
        Outcome::of(kit.run(&["--only", "docker_ways", "docker_images", "docker_uninstall"]))
            .exits(0);
    assert_eq!(installed_here(), before, "the host's files have changed");
    let all = kit.results();
    let rows = &all["rows"];
    if has_docker {
        let held = held_cases(&rows["docker_ways"]);
        for title in ["--gpus all", "--runtime=cgpu", "no limit"] {
            assert!(held.contains(&title), "{title}: {outcome:#?}");
        }
        assert_eq!(rows["docker_uninstall"]["result"], "held", "{outcome:#?}");
        // Images need a registry, and a shim for older systems than this one.
        let images = &rows["docker_images"];
        let lacks = ["images cannot be pulled", "the shim of this kit needs glibc"];
        let is_told = lacks.iter().any(|lack| contains(images, "because", lack));
        assert!(images["result"] == "held" || is_told, "{images:#}");
    } else {
        for name in DOCKER {
            assert_eq!(rows[name]["result"], "not possible", "{outcome:#?}");
        }
    }
    kit.leaves_nothing();
}

/// Defects of the installation and of the removal fail the row that is about them.
#[test]
fn container_without_a_limit_or_without_its_runtime_fails_its_row() {
    let test = "container_without_a_limit_or_without_its_runtime_fails_its_row";
    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    if !has_docker(test) {
        return;
    }
    kit.change("private_host.py", "\"setup\", \"docker\", \"--default\"", "\"version\"");
    Outcome::of(kit.run(&["--only", "docker_ways"])).exits(1);
    let row = kit.results()["rows"]["docker_ways"].take();
    assert!(contains(&row, "figure", "--gpus all FAILED, --runtime=cgpu FAILED"), "{row:#}");

    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    let next = "exec \"$next\" \"$@\"";
    let broken = format!("case \" $* \" in *\" exec \"*) exit 1 ;; esac\n{next}");
    kit.change("deploy/uninstall.sh", next, &broken);
    Outcome::of(kit.run(&["--only", "docker_uninstall"])).exits(1);
    let row = kit.results()["rows"]["docker_uninstall"].take();
    for title in ["exec afterwards FAILED", "the limit FAILED"] {
        assert!(contains(&row, "figure", title), "{row:#}");
    }
    for title in ["exec after the refusal", "stop", "start again"] {
        assert!(held_cases(&row).contains(&title), "{row:#}");
    }
    kit.leaves_nothing();
}

#[test]
fn killed_kit_leaves_no_docker_daemon() {
    let test = "killed_kit_leaves_no_docker_daemon";
    let Some(kit) = Kit::new(test) else { return };
    if !has_docker(test) {
        return;
    }
    let run = Child::start(kit.run(&["--only", "docker_uninstall"]));
    let host = kit.fixture.path("").to_string_lossy().into_owned();
    let runs = |name: &str| processes_of(&host).into_iter().find(|line| line.contains(name));
    kit.fixture.eventually("a container runs", || runs("containerd-shim"));
    run.signal(libc::SIGKILL);
    run.end();
    kit.fixture.wait_until_none("processes of the kit", || processes_of(&host));
}
