//! A tenant that restores old bytes of its region: what it gets, and what the monitor does.

use std::fs;

use cgpu_e2e::{Child, Fixture, MIB, Monitor, Outcome};

const LIMIT: u64 = 2048;
/// What the monitor lets each process of a container have beyond its limit, in these tests.
const MARGIN: u64 = 512;
/// Size of a context on the simulated GPU.
const CONTEXT: u64 = 256;

/// Starts the hostile program in a run of `LIMIT`, as several processes. They copy the region when
/// all have contexts, and begin when all have copied it.
fn rewind(fixture: &Fixture, processes: usize) -> Child {
    let (root, rewind) = (fixture.root(), fixture.dist().program("rewind"));
    let go = fixture.path("go");
    let one = format!("{} 64M $CGPU_DIR/use {} 240 <&3 &", rewind.display(), go.display());
    let script = format!("exec 3<&0; {} wait", one.repeat(processes));
    let limit = format!("{LIMIT}MiB");
    let root = root.to_string_lossy();
    let mut command = fixture.cgpu(&["run", "--root", &root, "--name", "a", "--mem", &limit]);
    command.args(["--", "sh", "-c", &script]).env("CGPU_LOG_FILE", fixture.path("log"));
    let mut tenant = Child::start_for(command, fixture.lifetime());
    (0..processes).for_each(|_| assert_eq!(held(&mut tenant), 0));
    fs::write(&go, "").expect("a file");
    (0..processes).for_each(|_| assert_eq!(held(&mut tenant), 0));
    fs::remove_file(&go).expect("no file");
    tenant
}

/// Returns the bytes that it has taken so far.
fn held(tenant: &mut Child) -> u64 {
    let line: serde_json::Value = serde_json::from_str(&tenant.line()).expect("its report");
    line["held"].as_u64().expect("a number of bytes")
}

fn faults(fixture: &Fixture, container: &str) -> Vec<String> {
    let smi = fixture.smi();
    let all = smi["containers"].as_array().expect("containers");
    let found = all.iter().find(|one| one["id"] == container);
    // A monitor that has just been told of a container may not list it yet.
    let faults = found.and_then(|one| one["faults"].as_object());
    faults.map(|faults| faults.keys().cloned().collect()).unwrap_or_default()
}

/// Returns how many MiB the container over its limit holds, by NVML.
fn together(fixture: &Fixture) -> u64 {
    let findings = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
    let over = findings.iter().find(|one| one["cause"] == "over_limit").expect("a finding");
    over["container_memory"].as_u64().expect("a number of bytes") / MIB
}

fn configured(action: &str) -> String {
    format!(
        "tree = \"none\"\nover_limit = \"{action}\"\nover_limit_margin_mib = {MARGIN}\n\
         over_limit_grace_s = 2\n"
    )
}

#[test]
fn process_that_rewinds_its_region_stays_within_its_limit_and_is_reported() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(&fixture, &configured("report"));
    let mut tenant = rewind(&fixture, 1);
    let taken = held(&mut tenant);
    assert!(taken <= LIMIT * MIB, "{} MiB of {LIMIT}", taken / MIB);
    fixture.eventually("a fault", || {
        faults(&fixture, "a").contains(&"tampered".to_owned()).then_some(())
    });
    let root = fixture.root();
    let root = root.to_string_lossy();
    let doctor = Outcome::of(fixture.cgpu(&["doctor", "--json", "--root", &root]));
    assert!(doctor.stdout.contains("\"tampered\""), "{}", doctor.stdout);
    let log = fs::read_to_string(fixture.path("log")).expect("a log");
    let logged = log.lines().filter(|line| line.contains("The ledger has less"));
    assert_eq!(logged.count(), 1, "{log}");
    tenant.close_input();
    assert!(held(&mut tenant) <= LIMIT * MIB, "later, too");
    tenant.finish().exits(0);
}

/// Each process keeps to the limit by its own count; together they do not.
#[test]
fn processes_that_rewind_their_region_together_are_blocked() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(&fixture, &configured("block"));
    let mut tenant = rewind(&fixture, 3);
    (0..3).for_each(|_| _ = held(&mut tenant));
    fixture.eventually("a block", || {
        faults(&fixture, "a").contains(&"blocked".to_owned()).then_some(())
    });
    let all = together(&fixture);
    // Each process after the first adds a quarter of the margin.
    assert!(all > LIMIT + MARGIN + MARGIN / 2, "the attack: {all} MiB of {LIMIT}");
    // Another process of the container gets nothing, whatever the region says.
    let inside = fixture.container("a").with("ALIYUN_COM_GPU_MEM_CONTAINER", "2");
    let mut late = fixture.program_in(&inside, "hold");
    late.args(["64M", "1"]);
    assert_ne!(Outcome::of(late).code(), Some(0));
    // A neighbour can have its limit.
    let neighbour = fixture.limited("b", 8192);
    let mut fill = fixture.program_in(&neighbour, "alloc_fill");
    fill.args(["64M", "1"]);
    let granted = Outcome::of(fill).silent().json()["granted"].as_u64();
    assert!(granted >= Some(7 << 30), "{granted:?}");
    assert!(faults(&fixture, "b").is_empty());
    assert!(fixture.smi()["ended"].as_array().is_some_and(Vec::is_empty));
    // Once they are gone, the container is as before.
    tenant.close_input();
    let later: u64 = (0..3).map(|_| held(&mut tenant)).sum();
    assert!(later <= 3 * LIMIT * MIB, "{} MiB of three limits", later / MIB);
    tenant.finish().exits(0);
}

#[test]
fn processes_that_rewind_their_region_together_are_ended() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(&fixture, &configured("end"));
    let honest = fixture.limited("b", LIMIT);
    let mut neighbour = fixture.program_in(&honest, "hold");
    neighbour.args(["1G", "240"]);
    let mut neighbour = Child::start_for(neighbour, fixture.lifetime());
    neighbour.line();
    let mut tenant = rewind(&fixture, 4);
    (0..4).for_each(|_| _ = held(&mut tenant));
    // They ignore SIGTERM, so SIGKILL follows.
    let killed = || {
        let ended = fixture.smi()["ended"].as_array().cloned().unwrap_or_default();
        assert!(ended.iter().all(|one| one["container"] == "a"), "{ended:#?}");
        let killed = ended.iter().filter(|one| one["signal"] == "SIGKILL").count();
        (killed > 0).then_some(())
    };
    fixture.eventually("one is killed", killed);
    let neighbours = 1024 + CONTEXT;
    fixture.eventually("the container is within its bound", || {
        (fixture.on_gpu() <= (LIMIT + MARGIN + neighbours) * MIB).then_some(())
    });
    assert!(neighbour.runs());
    neighbour.finish().silent();
    tenant.finish().exits(0);
}

/// Code of first launches, which no call requests, takes a container over its limit; a neighbour's
/// memory does not.
#[test]
fn code_within_the_margin_ends_no_process() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start_with(
        &fixture,
        "tree = \"none\"\nover_limit = \"end\"\nover_limit_grace_s = 1\n",
    );
    let neighbour = fixture.limited("b", 8192);
    let mut large = fixture.program_in(&neighbour, "hold");
    large.args(["7G", "240"]);
    let mut large = Child::start_for(large, fixture.lifetime());
    large.line();
    let (root, program) = (fixture.root(), fixture.dist().program("implicit_code"));
    let mut command = fixture.cgpu(&["run", "--root", &root.to_string_lossy(), "--name", "a"]);
    // 256 MiB of the context, 700 of the program; the code of 12,800 functions is 800.
    command.args(["--mem", "1GiB", "--"]).arg(program).args(["700M", "64M", "12800"]);
    let mut tenant = Child::start_for(command, fixture.lifetime());
    tenant.line();
    fixture.eventually("a finding that is older than the delays", || {
        let findings = fixture.smi()["findings"].as_array().cloned().unwrap_or_default();
        let over = |one: &&serde_json::Value| one["cause"] == "over_limit";
        let mut found = findings.iter().filter(over);
        let first = found.next()?;
        assert!(first["container"] == "a" && found.next().is_none(), "{findings:#?}");
        (first["since_ms"].as_u64()? > 6000).then_some(())
    });
    assert_eq!(faults(&fixture, "a"), [""; 0]);
    assert_eq!(fixture.smi()["ended"].as_array().map(Vec::len), Some(0));
    assert!(tenant.runs() && large.runs());
    tenant.finish().silent();
    large.finish().silent();
}
