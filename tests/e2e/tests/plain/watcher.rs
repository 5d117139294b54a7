//! Processes that use a GPU without the shim or exceed their container's limit: they are found and
//! shown, and ended only where configured.

use std::fs;
use std::path::Path;

use cgpu_e2e::{Child, Fixture, MIB, Monitor, Outcome, contained, mounted, skip};
use serde_json::Value;

/// Starts a script in a run of this name; `HOLD` stands for the program `hold`.
fn run(fixture: &Fixture, name: &str, options: &[&str], script: &str) -> Child {
    let (root, hold) = (fixture.root(), fixture.dist().program("hold"));
    let mut command = fixture.cgpu(&["run", "--root", &root.to_string_lossy(), "--name", name]);
    command.args(options).args([
        "--",
        "sh",
        "-c",
        &script.replace("HOLD", &hold.to_string_lossy()),
    ]);
    Child::start_for(command, std::time::Duration::from_secs(280))
}

fn findings(fixture: &Fixture, container: Option<&str>) -> Vec<Value> {
    let all = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|finding| finding["container"].as_str() == container).collect()
}

pub(super) fn smi(fixture: &Fixture) -> String {
    Outcome::of(fixture.cgpu(&["smi", "--root", &fixture.root().to_string_lossy()])).silent().stdout
}

/// Waits for the finding of this cause, which needs two samples of NVML.
fn found(fixture: &Fixture, container: Option<&str>, cause: &str) -> Value {
    fixture.eventually(cause, || {
        findings(fixture, container).into_iter().find(|finding| finding["cause"] == cause)
    })
}

/// Waits for the record of the only ended process. A process that takes long to end is recorded
/// again.
fn record(fixture: &Fixture) -> Value {
    fixture.eventually("a record", || {
        let all = fixture.smi()["ended"].as_array().cloned().unwrap_or_default();
        assert!(all.iter().all(|one| one["pid"] == all[0]["pid"]), "{all:#?}");
        all.into_iter().next()
    })
}

/// A container exports memory to a program without CUDA and ends: the memory stays, and no
/// container is charged for it.
#[test]
fn memory_that_outlives_its_container_is_shown() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\n");
    let socket = fixture.path("socket");
    let mut recipient = fixture.program("deposit");
    recipient.arg("keep").arg(&socket);
    let mut recipient = Child::start(recipient);
    recipient.line();
    // The program that exports it exits; its container goes on.
    let program = fixture.dist().program("deposit");
    let script = format!(
        "{} give 2G {} </dev/null; echo exited; exec cat",
        program.display(),
        socket.display()
    );
    let mut container = run(&fixture, "a", &["--mem", "4GiB"], &script);
    assert!(container.line().contains("given"));
    assert!(recipient.line().contains("kept"));
    assert!(container.line().contains("exited"));
    let smi_of = |key: &str| fixture.smi()["gpus"][0][key].as_u64();
    fixture.eventually("the container's charge", || {
        let all = fixture.smi()["containers"].as_array().cloned()?;
        let charged = all.iter().find(|one| one["id"] == "a")?["gpus"][0]["used"].as_u64();
        (charged? == 2048 * MIB && smi_of("memory_used")? == 2048 * MIB).then_some(())
    });
    // It would count after five seconds.
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!(smi_of("memory_unattributed"), Some(0));
    container.finish().silent();
    fixture.eventually("memory of no container", || {
        (smi_of("memory_unattributed")? == 2048 * MIB).then_some(())
    });
    assert!(smi(&fixture).contains("GPU 0: 2048 MiB that no process has"), "{}", smi(&fixture));
    let root = fixture.root();
    let doctor = fixture.cgpu(&["doctor", "--json", "--root", &root.to_string_lossy()]);
    let text = Outcome::of(doctor).stdout;
    assert!(text.contains("\"unattributed_memory\""), "{text}");
    recipient.finish().silent();
    fixture.eventually("no such memory", || (smi_of("memory_unattributed")? == 0).then_some(()));
}

pub(super) fn counted(fixture: &Fixture, sample: &str) {
    fixture.eventually(sample, || {
        let text = metrics(fixture);
        let value =
            text.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse::<f64>().ok());
        value.filter(|value| *value >= 1.0)
    });
}

fn metrics(fixture: &Fixture) -> String {
    let port = fs::read_to_string(fixture.path("monitor.toml")).expect("a configuration");
    let at = port
        .split("metrics = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("an address")
        .to_owned();
    let mut stream = fixture.eventually("an endpoint", || std::net::TcpStream::connect(&at).ok());
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("a request");
    let mut text = String::new();
    let _ = std::io::Read::read_to_string(&mut stream, &mut text);
    text
}

/// Returns a port that was free just now, on an address from which nothing connects.
pub(super) fn endpoint() -> String {
    std::net::TcpListener::bind("127.0.0.3:0")
        .expect("a port")
        .local_addr()
        .expect("an address")
        .to_string()
}

/// A right-to-left override, a line separator, a zero-width space.
const FORMAT_CHARACTERS: [char; 3] = ['\u{202e}', '\u{2028}', '\u{200b}'];

#[test]
fn names_that_a_container_chooses_do_not_rearrange_the_terminal() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\n");
    let format: String = FORMAT_CHARACTERS.iter().collect();
    let program = fixture.path(&format!("x{format}"));
    fs::copy(fixture.dist().program("hold"), &program).expect("a program");
    let script = format!("exec env -u LD_PRELOAD '{}' 3G 240", program.display());
    let mut held = run(&fixture, "a", &["--mem", "1GiB"], &script);
    held.line();
    let refused = fixture.root().join("containers/a/refused");
    fs::write(refused, format!("why{format}.")).expect("a file");
    found(&fixture, Some("a"), "unshimmed");
    let root = fixture.root();
    let doctor = fixture.cgpu(&["doctor", "--root", &root.to_string_lossy()]);
    for text in [smi(&fixture), Outcome::of(doctor).stdout] {
        assert!(text.contains("why???.") && text.contains("x???"), "{text:?}");
        assert!(!text.contains(FORMAT_CHARACTERS), "{text:?}");
    }
    held.finish().exits(0);
}

#[test]
fn unshimmed_process_is_reported_and_not_ended_by_default() {
    let fixture = Fixture::new("A10:23028");
    let at = endpoint();
    let mut monitor =
        Monitor::start_with(&fixture, &format!("tree = \"none\"\nmetrics = \"{at}\"\n"));
    let mut held = run(&fixture, "a", &["--mem", "1GiB"], "exec env -u LD_PRELOAD HOLD 3G 240");
    held.line();
    let finding = found(&fixture, Some("a"), "unshimmed");
    assert_eq!(
        (&finding["comm"], &finding["shim"]),
        (&"hold".into(), &"absent".into()),
        "{finding}"
    );
    assert!(finding["memory"].as_u64() >= Some(3 << 30), "{finding}");
    let pid = finding["pid"].as_u64().expect("a process id");
    let text = smi(&fixture);
    let line = format!("GPU 0: process {pid} (hold) of a uses it without the shim, ");
    assert!(text.contains(&line) && text.contains(&format!("cgpu doctor --pid {pid}")), "{text}");
    counted(&fixture, "cgpu_findings_total{cause=\"unshimmed\",container=\"a\"}");
    counted(&fixture, "cgpu_watched_processes{gpu=\"0\",cause=\"unshimmed\",container=\"a\"}");
    assert!(held.runs() && monitor.process.runs());
    held.finish().exits(0);
    fixture.eventually("it is found no more", || {
        findings(&fixture, Some("a")).is_empty().then_some(())
    });
}

#[test]
fn only_the_unshimmed_process_is_ended_where_configured() {
    let fixture = Fixture::new("A10:23028");
    let log = fixture.path("log");
    let at = endpoint();
    let _monitor = Monitor::start_with(
        &fixture,
        &format!("tree = \"none\"\nmetrics = \"{at}\"\nend_unshimmed = true\n"),
    );
    // The host's own, and one that has the shim.
    let mut native = fixture.program("hold");
    native.args(["1G", "240"]);
    let mut native = Child::start_for(native, std::time::Duration::from_secs(280));
    native.line();
    let mut good = run(&fixture, "good", &["--mem", "2GiB"], "exec HOLD 1G 240");
    good.line();
    let script =
        format!("env -u LD_PRELOAD HOLD 1G 240; echo $? > {}; exec HOLD 16M 1", log.display());
    let mut bad = run(&fixture, "bad", &["--mem", "2GiB"], &script);
    bad.line();
    let code = fixture.eventually("it is ended", || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    // 128 and SIGTERM, the shell's exit code.
    assert_eq!(code.trim(), "143");
    let ended = &record(&fixture);
    for (key, value) in
        [("comm", "hold"), ("cause", "unshimmed"), ("container", "bad"), ("signal", "SIGTERM")]
    {
        assert_eq!(ended[key], value, "{ended}");
    }
    counted(&fixture, "cgpu_ended_processes_total{cause=\"unshimmed\",container=\"bad\"}");
    let text = smi(&fixture);
    assert!(text.contains("of bad was sent SIGTERM by the monitor"), "{text}");
    let finding = found(&fixture, None, "unshimmed");
    assert_eq!(finding["pid"], native.pid(), "{finding}");
    let line =
        format!("GPU 0: processes of the host use it without the shim: {} (hold)", native.pid());
    fixture.eventually("a line", || smi(&fixture).contains(&line).then_some(()));
    bad.finish().exits(0);
    assert!(native.runs() && good.runs());
    assert!(findings(&fixture, Some("good")).is_empty());
    good.finish().silent();
    native.finish().silent();
}

#[test]
fn largest_process_over_the_limit_is_ended_where_configured() {
    let fixture = Fixture::new("A10:23028");
    let (go, log) = (fixture.path("go"), fixture.path("log"));
    let _monitor = Monitor::start_with(
        &fixture,
        "tree = \"none\"\nover_limit = \"end\"\nover_limit_margin_mib = 512\nover_limit_grace_s = 3\n",
    );
    // The first keeps to the limit. The second bypasses it.
    let script = format!(
        "exec 3<&0; HOLD 512M 240 <&3 & while ! [ -e {go} ]; do sleep 0.1; done; env -u LD_PRELOAD HOLD 3G 240 <&3; echo $? > {log}; wait",
        go = go.display(),
        log = log.display()
    );
    let mut both = run(&fixture, "a", &["--mem", "1GiB"], &script);
    both.line();
    // The watcher must have sampled the container within its limit to know which process exceeded
    // it. The host's process is started after the first one, and finding it takes two samples.
    fixture.eventually("a sample with the first process", || {
        (fixture.smi()["gpus"][0]["memory_used"].as_u64()? >= 512 * MIB).then_some(())
    });
    let mut native = fixture.program("hold");
    native.args(["16M", "240"]);
    let mut native = Child::start_for(native, std::time::Duration::from_secs(280));
    native.line();
    found(&fixture, None, "unshimmed");
    assert!(findings(&fixture, Some("a")).is_empty());
    fs::write(&go, "").expect("a file");
    both.line();
    let code = fixture.eventually("it is ended", || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(code.trim(), "143");
    // The finding ends with the process; the record stays.
    let ended = record(&fixture);
    assert_eq!(
        (&ended["cause"], &ended["container"]),
        (&"over_limit".into(), &"a".into()),
        "{ended}"
    );
    native.finish().silent();
    assert!(both.runs());
    both.finish().exits(0);
}

#[test]
fn process_over_a_lowered_limit_is_reported_and_not_ended() {
    let fixture = Fixture::new("A10:23028");
    let start = || {
        Monitor::start_with(
            &fixture,
            "tree = \"none\"\nover_limit = \"end\"\nover_limit_margin_mib = 0\nover_limit_grace_s = 3\n",
        )
    };
    let mut monitor = start();
    let mut held = run(&fixture, "a", &["--mem", "4GiB"], "exec HOLD 3G 240");
    held.line();
    fixture.eventually("a sample of the GPU", || {
        (fixture.smi()["gpus"][0]["memory_used"].as_u64()? >= 3 << 30).then_some(())
    });
    fixture.set("0/a/memsize", &(1024 * MIB).to_string());
    for after in ["the limit was lowered", "a monitor that knows nothing of that has come"] {
        let finding = found(&fixture, Some("a"), "over_limit");
        assert_eq!(finding["shim"], "bound", "{after}: {finding}");
        // Longer than the delay before a process is ended.
        fixture.eventually("an old finding", || {
            (found(&fixture, Some("a"), "over_limit")["since_ms"].as_u64()? > 6000).then_some(())
        });
        assert_eq!(fixture.smi()["ended"].as_array().map(Vec::len), Some(0), "{after}");
        assert!(held.runs(), "{after}");
        monitor.process.kill();
        monitor = start();
    }
    held.finish().silent();
}

/// A process in a container's PID namespace belongs to it, also without an ancestor that registered
/// the container.
#[test]
fn process_entering_a_containers_namespace_belongs_to_it() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 4096);
    let mut inside = fixture.program_in(&container, "hold");
    inside.args(["1G", "240"]);
    let Some(command) = contained(&inside, true) else {
        return skip("watcher", "unshare", "PID namespaces need root or user namespaces");
    };
    if std::process::Command::new("nsenter").arg("--version").output().is_err() {
        return skip("watcher", "nsenter", "there is no nsenter");
    }
    let _monitor = Monitor::start(&fixture);
    let mut inside = Child::start_for(command, std::time::Duration::from_secs(280));
    inside.line();
    let host_pid = fixture.eventually("its process is identified", || {
        fixture.accounting(&container)["processes"][0]["host_pid"].as_u64()
    });
    // From outside into the namespace, as `docker exec` does.
    let mut command = fixture.native(Path::new("nsenter"));
    command.args(["--target", &host_pid.to_string(), "--pid"]);
    if std::fs::metadata("/proc/self").map(|about| std::os::unix::fs::MetadataExt::uid(&about)).ok()
        != Some(0)
    {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--").arg(fixture.dist().program("hold")).args(["1G", "240"]);
    let mut entered = Child::start_for(command, std::time::Duration::from_secs(280));
    entered.line();
    let finding = found(&fixture, Some("a"), "unshimmed");
    assert_ne!(finding["pid"].as_u64(), Some(host_pid), "{finding}");
    assert_eq!(finding["comm"], "hold");
    entered.finish().exits(0);
    inside.finish().exits(0);
}

/// A process with a container's folder mounted at `/run/cgpu`, as runtimes mount it, belongs to the
/// container, whatever its ancestors.
#[test]
fn process_with_a_containers_folder_mounted_belongs_to_it() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.container("a");
    let mut bare = fixture.program("hold");
    bare.args(["1G", "240"]);
    let folder = container.directory().display();
    let setup =
        format!("mount -t tmpfs none /run && mkdir /run/cgpu && mount --bind {folder} /run/cgpu");
    let Some(command) = mounted(&bare, &setup) else {
        return skip("watcher", "unshare", "mounting needs root or user namespaces");
    };
    let _monitor = Monitor::start(&fixture);
    let mut bare = Child::start_for(command, std::time::Duration::from_secs(280));
    bare.line();
    let finding = found(&fixture, Some("a"), "unshimmed");
    assert_eq!(finding["comm"], "hold", "{finding}");
    bare.finish().exits(0);
}
