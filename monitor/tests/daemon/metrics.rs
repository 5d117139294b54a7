//! Tests of the metrics endpoint: its values, its names in other files, and clients that misbehave.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use cgpu_monitor::metrics::families::{Family, HAMI, Kind, OURS};
use cgpu_shm::atomic::Ordering::Relaxed;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

use crate::fake_container::Process;
use crate::monitor::{Monitor, TIMEOUT, eventually};
use crate::{Fixture, find, registration, status};

/// Returns an address that was just free. No program connects from that address, so no connection
/// takes its port.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap()
}

pub(crate) fn monitor(fixture: &Fixture, more: &str) -> (Monitor, SocketAddr) {
    let at = free_address();
    let monitor = Monitor::start_with(fixture.root(), &format!("metrics = \"{at}\"\n{more}"));
    eventually("an endpoint", || TcpStream::connect(at).is_ok());
    (monitor, at)
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

pub(crate) fn request(at: SocketAddr, text: &[u8]) -> String {
    let mut stream = connect(at);
    stream.write_all(text).unwrap();
    let mut reply = Vec::new();
    // A reply may be followed by a reset where not all of the request was read.
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

pub(crate) fn scrape(at: SocketAddr) -> String {
    let reply = request(at, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with(
            "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0"
        ),
        "{head}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
    body.to_owned()
}

pub(crate) fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

/// Prometheus drops samples of a series that it has already: one container could hide another one.
#[test]
fn containers_of_one_name_have_series_of_their_own() {
    let fixture = Fixture::new();
    let (monitor, at) = monitor(&fixture, "metrics_hami = true\n");
    let processes = ["a", "b"].map(|id| {
        let dir = fixture.container(id);
        let named = cgpu_client::message::Registration {
            name: Some("trainer".into()),
            ..registration(&dir)
        };
        monitor.client().register(named).unwrap();
        Process::start(&dir, 1, Bytes::from_mib(8000))
    });
    let series = || {
        let text = scrape(at);
        let samples = text.lines().filter(|line| line.starts_with("hami_vgpu_memory_limit_bytes{"));
        samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect::<Vec<_>>()
    };
    eventually("both", || series().len() == 2);
    let found: std::collections::BTreeSet<String> = series().into_iter().collect();
    assert_eq!(found.len(), 2, "{found:?}");
    drop(processes);
}

/// The other metrics have only the container's id; queries join them with this one.
#[test]
fn container_of_kubernetes_has_its_pod_in_labels() {
    let fixture = Fixture::new();
    let (monitor, at) = monitor(&fixture, "");
    let dir = fixture.container("0123");
    let named = cgpu_client::message::Registration {
        name: Some("team/trainer-0/main".into()),
        ..registration(&dir)
    };
    monitor.client().register(named).unwrap();
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    let sample = "cgpu_container_info{container=\"0123\",name=\"team/trainer-0/main\",\
                  namespace=\"team\",pod=\"trainer-0\",container_name=\"main\"}";
    eventually("its pod", || value(&scrape(at), sample) == Some(1.0));
    drop(process);
}

#[test]
fn metrics_match_the_status() {
    let fixture = Fixture::new();
    let dir = fixture.container("trainer");
    let record = cgpu_shm::paths::host_record(&dir).unwrap();
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    std::fs::write(record, r#"{"bundle":"/b","image":"local/cuda:1"}"#).unwrap();
    let (monitor, at) = monitor(&fixture, "metrics_hami = true\n");
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    process.cell().held.store(1000, Relaxed);
    process.cell().implicit.store(24, Relaxed);
    let counter = |reason: Reason| &process.region.slot(process.slot).counter[reason as usize];
    counter(Reason::OverLimit).store(3, Relaxed);
    counter(Reason::OtherGpu).store(2, Relaxed);
    counter(Reason::PoolGrew).store(1, Relaxed);
    counter(Reason::Tampered).store(1, Relaxed);
    let unknown = &process.region.shared().header.unknown_function;
    cgpu_shm::named_count::count(unknown, "cuMemAlloc_v3");
    let named = cgpu_client::message::Registration {
        name: Some("a \"b\"\\\n".into()),
        ..registration(&dir)
    };
    monitor.client().register(named).unwrap();
    let on = "{container=\"trainer\",gpu=\"0\"}";
    let check = |sample: &str, expected: f64| {
        eventually(&format!("{sample} = {expected}"), || {
            value(&scrape(at), sample) == Some(expected)
        });
    };
    check(&format!("cgpu_memory_used_bytes{on}"), 1024.0);
    check(&format!("cgpu_memory_implicit_bytes{on}"), 24.0);
    check(&format!("cgpu_memory_limit_bytes{on}"), 8_388_608_000.0);
    check(&format!("cgpu_share_set_ratio{on}"), 1.0);
    check("cgpu_refusals_total{container=\"trainer\",reason=\"over_limit\"}", 3.0);
    check("cgpu_bypasses_total{container=\"trainer\",reason=\"other_gpu\"}", 2.0);
    check("cgpu_notices_total{container=\"trainer\",reason=\"pool_grew\"}", 1.0);
    check("cgpu_notices_total{container=\"trainer\",reason=\"tampered\"}", 1.0);
    check("cgpu_container_fault{container=\"trainer\",fault=\"tampered\"}", 1.0);
    // This monitor has no NVML.
    check("cgpu_gpu_limits_unverified{gpu=\"0\"}", 1.0);
    check(
        "cgpu_container_info{container=\"trainer\",name=\"a \\\"b\\\"\\\\ \",\
         image=\"local/cuda:1\"}",
        1.0,
    );
    check("cgpu_container_unknown_function{container=\"trainer\",function=\"cuMemAlloc_v3\"}", 1.0);
    check("cgpu_container_processes{container=\"trainer\"}", 1.0);
    check("cgpu_gpu_capacity_units{gpu=\"0\"}", 20.0);
    let text = scrape(at);
    assert!(
        text.lines()
            .any(|line| line.starts_with("hami_vgpu_memory_used_bytes{")
                && line.ends_with(" 1024.0")),
        "{text}"
    );
    drop(process);
    eventually("its exit", || {
        find(&status(&monitor), "trainer").processes.iter().all(|process| !process.live)
    });
    let _next = Process::start(&dir, 1, Bytes::from_mib(8000));
    check("cgpu_refusals_total{container=\"trainer\",reason=\"over_limit\"}", 3.0);
}

#[test]
fn slow_clients_delay_neither_endpoint_nor_monitor() {
    let fixture = Fixture::new();
    let (monitor, at) = monitor(&fixture, "");
    // More than may be connected: some send nothing, some half a request, some never read.
    let idle: Vec<TcpStream> = (0..40).map(|_| connect(at)).collect();
    let half: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(at);
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
            stream
        })
        .collect();
    let unread: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(at);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    scrape(at);
    assert!(request(at, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(
        request(at, format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)).as_bytes())
            .contains(" 431 ")
    );
    assert!(request(at, b"DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(request(at, b"GET /passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let mut random = random_numbers(7);
    for _ in 0..200 {
        let garbage: Vec<u8> =
            (0..random() % 300).map(|_| u8::try_from(random() % 256).unwrap()).collect();
        let mut stream = connect(at);
        // It may be refused before all of it is written.
        let _ = stream.write_all(&garbage);
    }
    scrape(at);
    assert_eq!(monitor.client().get("version").unwrap(), env!("CARGO_PKG_VERSION"));
    drop((idle, half, unread));
}

/// Returns a generator of pseudo-random numbers, the same in each run.
fn random_numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

#[test]
fn metrics_can_be_switched_off() {
    let fixture = Fixture::new();
    let at = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    std::fs::write(fixture.root().join("unused"), at.to_string()).unwrap();
    let _monitor = Monitor::start_with(fixture.root(), "metrics = \"off\"\n");
    assert!(TcpStream::connect(at).is_err());
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns what looks like the name of a metric.
fn names(text: &str) -> BTreeSet<String> {
    let fields = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    fields
        .filter(|word| {
            word.starts_with("cgpu_") || word.starts_with("hami_") || word.starts_with("process_")
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_and_alerts_use_existing_metrics_only() {
    let known: BTreeSet<String> = OURS.iter().map(Family::name).collect();
    for file in ["deploy/grafana-dashboard.json", "deploy/prometheus-alerts.yaml"] {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let named = names(&text);
        assert!(named.len() > 5, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
        if file.ends_with(".json") {
            let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(parsed["panels"].as_array().unwrap().len() > 5);
        }
    }
}

/// Metrics that need not be on the dashboard or in an alert.
const NOT_SHOWN: [&str; 4] = [
    "cgpu_uptime_seconds",
    "cgpu_gpu_policy",
    "cgpu_container_high_priority",
    "cgpu_container_info",
];

#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let shown: BTreeSet<String> =
        ["deploy/grafana-dashboard.json", "deploy/prometheus-alerts.yaml"]
            .iter()
            .flat_map(|file| names(&fs::read_to_string(repository().join(file)).unwrap()))
            .collect();
    let missing: Vec<String> = OURS
        .iter()
        .map(Family::name)
        .filter(|name| !shown.contains(name) && !NOT_SHOWN.contains(&name.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "neither deploy/grafana-dashboard.json nor deploy/prometheus-alerts.yaml names \
         {missing:?}: add a panel or an alert, or the name to NOT_SHOWN"
    );
}

#[test]
fn metric_names_follow_prometheus_rules() {
    let mut seen = BTreeSet::new();
    for family in OURS.iter().chain(HAMI) {
        let name = family.name();
        assert!(seen.insert(name.clone()), "{name} twice");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
        assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
    }
}

/// The table in docs/monitoring.md is generated: `BLESS=1` writes it.
#[test]
fn docs_list_every_metric() {
    let file = repository().join("docs/monitoring.md");
    let text = fs::read_to_string(&file).unwrap();
    let mut table = String::from("\n| name | kind | what |\n|---|---|---|\n");
    for family in OURS.iter().chain(HAMI) {
        let kind = format!("{:?}", family.kind).to_lowercase();
        table.push_str(&format!("| `{}` | {kind} | {} |\n", family.name(), family.help));
    }
    table.push('\n');
    let (before, rest) = text.split_once("<!-- metrics -->").unwrap();
    let (found, after) = rest.split_once("<!-- end of metrics -->").unwrap();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, format!("{before}<!-- metrics -->{table}<!-- end of metrics -->{after}"))
            .unwrap();
    } else {
        assert!(
            found == table,
            "the table of docs/monitoring.md is old; to write it, run \
             `BLESS=1 cargo test -p cgpu-monitor --test daemon docs_list_every_metric`"
        );
    }
}
