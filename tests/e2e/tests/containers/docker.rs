//! Containers of a Docker daemon: the documented commands, and the ends of containers.

use super::*;

/// Removes the documents' resource limits where a confined host cannot grant them.
pub(crate) fn with_resources<'a>(docker: &Docker, line: &'a str) -> Cow<'a, str> {
    let memlock = "--ulimit memlock=-1 ";
    let probe = docker.line(&format!("docker run --rm --runtime=runc {memlock}IMAGE true"));
    if probe.code() == Some(0) { line.into() } else { line.replace(memlock, "").into() }
}

pub(crate) fn sizes_in(docker: &Docker, name: &str) -> Vec<u64> {
    let outcome = docker.run(&["exec", "-i", name, "env", "-i", "/bin/meminfo"]).exits(0);
    let total = |line: &str| {
        serde_json::from_str::<Value>(line).expect("JSON")["total"].as_u64().expect("a number")
    };
    outcome.stdout.lines().map(|line| total(line) / MIB).collect()
}

/// The command of README.md; other containers start as before.
#[test]
fn runtime_that_is_not_the_default_limits_the_containers_that_name_it() {
    let fixture = Fixture::new(T4);
    let test = "docker::runtime_that_is_not_the_default_limits_the_containers_that_name_it";
    let Some(docker) = Docker::start_opt_in(test, &fixture, T4) else { return };
    let commands = readme_commands("docker run");
    let line = commands.last().expect("the command that starts a container");
    docker.line(&line.replace("docker run", "docker run --name first")).exits(0);
    assert_eq!(sizes_in(&docker, "first"), [6043]);
    let plain = line.replace("--runtime=cgpu --gpus all", "--name second");
    assert!(plain.starts_with("docker run -d -t --name second -e ALIYUN_COM_GPU_MEM_"), "{plain}");
    docker.line(&plain).exits(0);
    let maps = docker.run(&["exec", "second", "cat", "/proc/self/maps"]).exits(0).stdout;
    assert!(!maps.contains("cgpu"), "{maps}");
}

#[test]
fn set_limit_applies_to_the_first_program_and_ends_at_a_restart() {
    let fixture = Fixture::new(T4);
    let test = "docker::set_limit_applies_to_the_first_program_and_ends_at_a_restart";
    let Some(docker) = Docker::start(test, &fixture, T4) else { return };
    let _monitor = Monitor::start(&fixture);
    let root = fixture.root().to_string_lossy().into_owned();
    docker.line("docker run -d --name first -e ALIYUN_COM_GPU_MEM_CONTAINER=6 IMAGE").exits(0);
    let set = || Outcome::of(fixture.cgpu(&["set", "0/first/memsize", "4GiB", "--root", &root]));
    let said = fixture.eventually("the monitor knows the container", || {
        Some(set()).filter(|outcome| outcome.code() == Some(0))
    });
    assert!(said.stdout.ends_with("/memsize: 4294967296 (4096 MiB)\n"), "{said:?}");
    assert_eq!(sizes_in(&docker, "first"), [4096]);
    docker.run(&["restart", "--time", "0", "first"]).exits(0);
    assert_eq!(sizes_in(&docker, "first"), [6144]);
    let size = || Outcome::of(fixture.cgpu(&["get", "0/first/memsize", "--root", &root])).stdout;
    fixture.eventually("the monitor knows the new start", || {
        (size() == format!("{}\n", 6144 * MIB)).then_some(())
    });
    assert_eq!(sizes_in(&docker, "first"), [6144]);
}

#[test]
fn two_containers_share_a_gpu_as_documented() {
    let fixture = Fixture::new(T4);
    let Some(docker) =
        Docker::start("docker::two_containers_share_a_gpu_as_documented", &fixture, T4)
    else {
        return;
    };
    for (name, amount) in [("gpu_test1", 6), ("gpu_test2", 8)] {
        let line = format!(
            "docker run -d -t --gpus all --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 --name {name} -v /mnt:/mnt \
             -e ALIYUN_COM_GPU_MEM_CONTAINER={amount} -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE"
        );
        docker.line(&with_resources(&docker, &line)).exits(0);
    }
    assert_eq!(sizes_in(&docker, "gpu_test1"), [6043]);
    assert_eq!(sizes_in(&docker, "gpu_test2"), [8058]);
    let filled = docker.run(&["exec", "gpu_test1", "env", "-i", "/bin/alloc_fill", "64M"]).exits(0);
    assert!(filled.number("error") == 2 && filled.number("granted") <= 6043 * MIB, "{filled:?}");
    let variables = docker.run(&["exec", "gpu_test1", "env"]).exits(0).stdout;
    for line in ["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"] {
        assert!(variables.lines().any(|other| other == line), "{variables}");
    }
    let listed = docker.run(&["ps", "--format", "{{.ID}} {{.Names}}"]).stdout;
    let shown = fixture.smi();
    for line in listed.lines() {
        let (id, name) = line.split_once(' ').expect("two words");
        let found = shown["containers"]
            .as_array()
            .expect("containers")
            .iter()
            .find(|one| one["name"] == *name);
        let found = found.unwrap_or_else(|| panic!("{name} is not in {shown:#}"));
        assert_eq!(found["id"], *id, "{found:#}");
    }
    let refused = docker
        .line("docker run --rm --runtime cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=six IMAGE true");
    assert!(
        refused.code() == Some(125)
            && refused.stderr.contains("ALIYUN_COM_GPU_MEM_CONTAINER is `six`, expected"),
        "{refused:?}"
    );
    let plain = docker.line("docker run --rm IMAGE cat /proc/self/maps").exits(0).stdout;
    assert!(!plain.contains("cgpu"), "{plain}");
    docker.run(&["restart", "--time", "0", "gpu_test1"]).exits(0);
    assert_eq!(sizes_in(&docker, "gpu_test1"), [6043]);
    docker.run(&["pause", "gpu_test1"]).exits(0);
    docker.run(&["unpause", "gpu_test1"]).exits(0);
    assert_eq!(sizes_in(&docker, "gpu_test1"), [6043]);
    docker.run(&["rm", "--force", "gpu_test1", "gpu_test2"]).exits(0);
    is_clean(&fixture);
}

#[test]
fn four_gpus_have_four_limits_as_documented() {
    let gpus = "A10:23028,A10:23028,A10:23028,A10:23028";
    let fixture = Fixture::new(gpus);
    let Some(docker) =
        Docker::start("docker::four_gpus_have_four_limits_as_documented", &fixture, gpus)
    else {
        return;
    };
    let line = "docker run -d -t --runtime=nvidia --name gpu_test0123 --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 -v /mnt:/mnt \
                -e ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5,6 -e ALIYUN_COM_GPU_MEM_DEV=23 -e NVIDIA_VISIBLE_DEVICES=0,1,2,3 IMAGE";
    docker.line(&with_resources(&docker, line)).exits(0);
    let expected = [3, 4, 5, 6].map(|amount| 23028 * amount / 23);
    assert_eq!(sizes_in(&docker, "gpu_test0123"), expected);
}

#[test]
fn default_seccomp_profile_keeps_programs_from_hiding_the_shim() {
    let test = "docker::default_seccomp_profile_keeps_programs_from_hiding_the_shim";
    let fixture = Fixture::new(T4);
    let Some(docker) = Docker::start(test, &fixture, T4) else { return };
    let run = |option: &[&str], script: &str| {
        let request = SIX.iter().flat_map(|variable| ["-e", *variable]).collect::<Vec<_>>();
        let image = [docker.image(), "sh", "-c", script];
        docker.run(&[&["run", "--rm", "--network=none"], option, &request, &image].concat())
    };
    let hide = "mount --bind /dev/null /etc/ld.so.preload && exec init";
    let in_namespace = format!("unshare -Urm sh -c '{hide}'");
    for script in [hide, &in_namespace] {
        let outcome = run(&[], script);
        assert!(outcome.code() != Some(0) && outcome.stdout.is_empty(), "{outcome:?}");
    }
    // A host with AppArmor or without user namespaces closes this way all the same.
    let open = run(&["--security-opt", "seccomp=unconfined"], &in_namespace);
    assert!(open.code() != Some(0) || open.number("total") > 6043 * MIB, "{open:?}");
    assert_eq!(run(&[], "init").exits(0).number("total"), 6043 * MIB);
}

#[test]
fn limits_hold_in_confined_containers() {
    let fixture = Fixture::new(T4);
    let Some(docker) = Docker::start("docker::limits_hold_in_confined_containers", &fixture, T4)
    else {
        return;
    };
    for how in [
        "--read-only",
        "--pid=host",
        "--ipc=host",
        "--ipc=none",
        "--user=1000",
        "--init",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--tmpfs=/run",
        "--volume=/tmp:/run/cgpu",
    ] {
        docker
            .line(&format!("docker run -d {how} --name box -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE"))
            .exits(0);
        assert_eq!(sizes_in(&docker, "box"), [6043], "{how}");
        docker.run(&["rm", "--force", "box"]).exits(0);
    }
}

const BOX: &str =
    "docker run -d --name box -e ALIYUN_COM_GPU_MEM_CONTAINER=6 -e ALIYUN_COM_GPU_MEM_DEV=15";

#[test]
fn slice_ends_with_its_container() {
    let fixture = Fixture::new(T4);
    let Some(docker) = Docker::start("docker::slice_ends_with_its_container", &fixture, T4) else {
        return;
    };
    let gone = || fixture.wait_until_none("folders", || folders(&fixture));
    docker.line(&format!("{BOX} IMAGE")).exits(0);
    docker.run(&["kill", "box"]).exits(0);
    gone();
    // The stopped container still exists. Its slice is free for others, and is made again when it
    // starts.
    docker
        .line("docker run --rm -e ALIYUN_COM_GPU_MEM_CONTAINER=15 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE true")
        .exits(0);
    docker.run(&["start", "box"]).exits(0);
    assert_eq!(sizes_in(&docker, "box"), [6043]);
    docker.run(&["stop", "--time", "0", "box"]).exits(0);
    gone();
    docker.run(&["rm", "box"]).exits(0);

    // A shell that doubles a string exceeds its memory on the host. Without Docker's limit it would
    // take this host's memory.
    if docker.run(&["info", "--format", "{{.MemoryLimit}}"]).stdout.trim() == "true" {
        let doubling = "hold 64M 600 & w=0123456789abcdef; while true; do w=$w$w; done";
        let line = format!("{BOX} --memory=64m --network=none {} sh -c", docker.image());
        let mut words: Vec<&str> = line.split(' ').skip(1).collect();
        words.push(doubling);
        docker.run(&words).exits(0);
        let state = || {
            docker
                .run(&["inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", "box"])
                .stdout
        };
        let end = fixture.eventually("the kernel ends it", || {
            Some(state()).filter(|state| state.starts_with("false"))
        });
        assert_eq!(end.trim(), "false 137");
        gone();
        docker.run(&["rm", "box"]).exits(0);
    }

    docker.line(&format!("{BOX} --restart=always IMAGE")).exits(0);
    let restarts = || {
        docker
            .run(&["inspect", "--format", "{{.RestartCount}}", "box"])
            .stdout
            .trim()
            .parse::<u32>()
            .unwrap_or(0)
    };
    // The engine does not restart what it killed itself; this is like a crash.
    let pid = docker.run(&["inspect", "--format", "{{.State.Pid}}", "box"]).exits(0).stdout;
    let mut kill = std::process::Command::new("sh");
    kill.args(["-c", "kill -9 $1", "sh", pid.trim()]);
    Outcome::of(kill).exits(0);
    fixture.eventually("it runs again", || (restarts() > 0).then_some(()));
    fixture.eventually("its slice is there again", || {
        let inside = docker.run(&["exec", "box", "env", "-i", "/bin/init"]);
        (inside.code() == Some(0)).then(|| assert_eq!(inside.number("total"), 6043 * MIB))
    });
    docker.run(&["rm", "--force", "box"]).exits(0);
    gone();
    is_clean(&fixture);
}

#[test]
fn slices_survive_a_daemon_with_live_restore() {
    let fixture = Fixture::new(T4);
    let test = "docker::slices_survive_a_daemon_with_live_restore";
    let Some(mut docker) = Docker::start_with(test, &fixture, T4, &["--live-restore"]) else {
        return;
    };
    docker.line(&format!("{BOX} IMAGE")).exits(0);
    let mut held = docker.spawn(&["exec", "-i", "box", "hold", "1G", "600"]);
    held.line();
    docker.restart();
    assert_eq!(sizes_in(&docker, "box"), [6043]);
    let shown = fixture.smi();
    assert_eq!(shown["containers"][0]["name"], "box", "{shown:#}");
    assert!(shown["containers"][0]["gpus"][0]["used"].as_u64() >= Some(1024 * MIB), "{shown:#}");
    drop(held);
    docker.run(&["rm", "--force", "box"]).exits(0);
    is_clean(&fixture);
}

#[test]
fn slices_end_with_a_daemon_without_live_restore() {
    let fixture = Fixture::new(T4);
    let test = "docker::slices_end_with_a_daemon_without_live_restore";
    let Some(mut docker) = Docker::start(test, &fixture, T4) else { return };
    docker.line(&format!("{BOX} --stop-signal=KILL IMAGE")).exits(0);
    docker
        .line(
            &format!("{BOX} --stop-signal=KILL --restart=always IMAGE")
                .replace("box", "again")
                .replace("=6", "=8"),
        )
        .exits(0);
    docker.restart();
    fixture.eventually("the restarted container has its slice", || {
        let inside = docker.run(&["exec", "again", "env", "-i", "/bin/init"]);
        (inside.code() == Some(0)).then(|| assert_eq!(inside.number("total"), 8058 * MIB))
    });
    // The removed container's part of the GPU is free, and it can have it again.
    fixture.eventually("one folder is left", || (folders(&fixture).len() == 1).then_some(()));
    docker.run(&["start", "box"]).exits(0);
    assert_eq!(sizes_in(&docker, "box"), [6043]);
    docker.run(&["rm", "--force", "box", "again"]).exits(0);
    is_clean(&fixture);
}

#[test]
fn limits_hold_in_user_namespaces() {
    let fixture = Fixture::new(T4);
    let Some(docker) =
        Docker::start_remapped("docker::limits_hold_in_user_namespaces", &fixture, T4)
    else {
        return;
    };
    for user in ["0", "1000"] {
        docker.line(&format!("{BOX} --user={user} IMAGE")).exits(0);
        let map = docker.run(&["exec", "box", "cat", "/proc/self/uid_map"]).exits(0).stdout;
        assert!(map.contains("100000"), "{map}");
        assert_eq!(sizes_in(&docker, "box"), [6043], "user {user}");
        let filled = docker.run(&["exec", "box", "env", "-i", "/bin/alloc_fill", "64M"]).exits(0);
        assert!(
            filled.number("error") == 2 && filled.number("granted") <= 6043 * MIB,
            "{filled:?}"
        );
        let attempt = docker.run(&["exec", "box", "sh", "-c", "echo > /run/cgpu/limits"]);
        assert!(attempt.stderr.contains("Read-only"), "{attempt:?}");
        docker.run(&["rm", "--force", "box"]).exits(0);
    }
    is_clean(&fixture);
}

#[test]
fn smi_shows_ids_names_and_images() {
    let fixture = Fixture::new(T4);
    let Some(docker) = Docker::start("docker::smi_shows_ids_names_and_images", &fixture, T4) else {
        return;
    };
    let early = docker.line(&format!("{BOX} IMAGE").replace("box", "early")).exits(0).stdout;
    let _monitor = Monitor::start(&fixture);
    let late = docker.line(&format!("{BOX} IMAGE").replace("box", "late")).exits(0).stdout;
    for (id, name) in [(early, "early"), (late, "late")] {
        let seen = fixture.eventually("the monitor knows it", || {
            let all = fixture.smi();
            all["containers"].as_array()?.iter().find(|one| one["name"] == *name).cloned()
        });
        assert_eq!(seen["id"], id[..12], "{seen:#}");
        assert_eq!(seen["image"], docker.image(), "{seen:#}");
    }
    let root = fixture.root().to_string_lossy().into_owned();
    let table = Outcome::of(fixture.cgpu(&["smi", "--root", &root])).exits(0).stdout;
    assert!(
        table.contains("late") && table.contains(&format!("image {}", docker.image())),
        "{table}"
    );
}

#[test]
fn many_concurrent_containers_leave_no_slices() {
    let fixture = Fixture::new(T4);
    let Some(docker) =
        Docker::start("docker::many_concurrent_containers_leave_no_slices", &fixture, T4)
    else {
        return;
    };
    let _monitor = Monitor::start(&fixture);
    let daemons = docker.folder().to_string_lossy().into_owned();
    let before = mounts_below(&daemons);
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let docker = docker.client();
            scope.spawn(move || {
                for round in 0..10 {
                    let name = format!("s{thread}-{round}");
                    let line = format!("docker run -d --name {name} -e ALIYUN_COM_GPU_MEM_CONTAINER=1 -e ALIYUN_COM_GPU_MEM_DEV=15 IMAGE");
                    docker.line(&line).exits(0);
                    match round % 3 {
                        0 => docker.run(&["kill", &name]).exits(0),
                        1 => docker.run(&["exec", &name, "init"]).exits(0),
                        _ => docker.run(&["pause", &name]).exits(0),
                    };
                    docker.run(&["rm", "--force", &name]).exits(0);
                }
            });
        }
    });
    fixture.eventually("the monitor has forgotten them", || {
        fixture.smi()["containers"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    fixture.wait_until_none("mounts", || {
        mounts_below(&daemons).into_iter().filter(|mount| !before.contains(mount)).collect()
    });
    is_clean(&fixture);
}
