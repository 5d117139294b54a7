//! The same GPU inside and outside of two containers as real tools show it: nvitop, nvidia-ml-py,
//! nvml-wrapper.
//!
//! Their output is in `docs/internals/view.md`; `BLESS=1 cargo xtask test --only clients` writes it
//! there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cgpu_e2e::{Child, Fixture, MIB, Monitor, Outcome, contained, python, skip};

const GPU: u64 = 23_028 * MIB;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    total: u64,
    used: u64,
    free: u64,
    processes: Vec<Process>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u64,
    bytes: u64,
    busy: bool,
}

impl Seen {
    /// Reads what `nvml_view.py` and `nvml-wrapper-client` print.
    fn read(text: &str) -> Self {
        let numbers = |line: &str| -> Vec<u64> {
            line.split(|character: char| !character.is_ascii_digit())
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        let mut lines = text.lines();
        let gpu = numbers(lines.next().unwrap_or_default());
        let [total, used, free] = gpu[..] else { panic!("no GPU in {text}") };
        let process = |line: &str| {
            let [pid, bytes] = numbers(line)[..] else { panic!("no process in {text}") };
            Process { pid, bytes, busy: line.ends_with("busy") }
        };
        Self { total, used, free, processes: lines.map(process).collect() }
    }

    fn sum(&self) -> u64 {
        self.processes.iter().map(|process| process.bytes).sum()
    }

    fn without_utilisation(mut self) -> Self {
        self.processes.iter_mut().for_each(|process| process.busy = false);
        self
    }
}

struct Container(Child);

impl Container {
    /// Starts the shell and programs beside it. Returns None where namespaces are not available.
    fn start(fixture: &Fixture, name: &str, mem: &str, beside: &str) -> Option<Self> {
        let root = fixture.root();
        let script = format!("{beside} exec sh");
        let mut command =
            fixture.cgpu(&["run", "--root", &root.to_string_lossy(), "--name", name, "--mem", mem]);
        command.args(["--", "sh", "-c", &script]).env("PATH", path(fixture));
        contained(&command, true).map(|command| Self(Child::start(command)))
    }

    fn run(&mut self, line: &str) -> String {
        self.0.write(&format!("{line} </dev/null 2>&1; echo \"end $?\"\n"));
        let mut text = String::new();
        loop {
            let line = self.0.line();
            match line.strip_prefix("end ") {
                Some(code) => {
                    assert_eq!(code, "0", "{text}");
                    return text;
                }
                None => text.extend([line.as_str(), "\n"]),
            }
        }
    }
}

/// Returns a PATH with the test programs, which are found by name as a container's own are.
fn path(fixture: &Fixture) -> String {
    let system = std::env::var("PATH").unwrap_or_default();
    format!("{}:{system}", fixture.dist().folder().join("programs").display())
}

struct Tools {
    nvitop: String,
    pynvml: String,
    wrapper: String,
}

impl Tools {
    fn of(python: &Path) -> Self {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let python = format!("PYTHONDONTWRITEBYTECODE=1 {}", python.display());
        Self {
            nvitop: format!("TERM=dumb COLUMNS=100 {python} -m nvitop --once --no-unicode"),
            pynvml: format!("{python} {}", clients.join("nvml_view.py").display()),
            wrapper: env!("CARGO_BIN_EXE_nvml-wrapper-client").to_owned(),
        }
    }
}

fn outside(fixture: &Fixture, line: &str) -> String {
    let mut shell = fixture.native("sh".as_ref());
    shell.args(["-c", line]).env("PATH", path(fixture));
    Outcome::of(shell).silent().stdout
}

/// Compares an output with the page's at its mark, or writes it there with BLESS.
fn check_page(name: &str, text: &str) {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/view.md");
    let old = std::fs::read_to_string(&page).expect("docs/internals/view.md");
    let mark = format!("<!-- {name} -->\n```\n");
    let begin = old.find(&mark).unwrap_or_else(|| panic!("docs/internals/view.md has no {name}"))
        + mark.len();
    let end = begin + old[begin..].find("```").expect("an end");
    if std::env::var_os("BLESS").is_some() {
        let lines: String = text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
        std::fs::write(
            &page,
            format!("{}{}\n{}", &old[..begin], lines.trim_matches('\n'), &old[end..]),
        )
        .expect("docs/internals/view.md can be written");
    }
}

#[test]
fn views_inside_and_outside_containers_add_up() {
    let Some(python) = python("view") else { return };
    let tools = Tools::of(&python);
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let beside = "(while echo work; do :; done | who 2G >/dev/null) & (sleep 250 | who 1G) &";
    let Some(mut notebook) = Container::start(&fixture, "notebook", "6GiB", beside) else {
        return skip("view", "unshare", "PID namespaces need root or user namespaces");
    };
    fixture.eventually("two processes", || {
        (Seen::read(&notebook.run(&tools.pynvml)).processes.len() == 2).then_some(())
    });
    let beside = "(while echo work; do :; done | who 5G >/dev/null) &";
    let mut server = Container::start(&fixture, "server", "8GiB", beside).expect("as the first");

    // Until all processes are there and NVML's measurement of each is charged.
    let [inside, neighbour, host] = fixture.eventually("the same bytes inside and outside", || {
        let seen = [
            notebook.run(&tools.pynvml),
            server.run(&tools.pynvml),
            outside(&fixture, &tools.pynvml),
        ];
        let seen = seen.map(|text| Seen::read(&text));
        let [inside, neighbour, host] = &seen;
        let all = host.processes.len() == 3 && host.sum() == inside.sum() + neighbour.sum();
        let busy = |seen: &Seen| seen.processes.iter().filter(|process| process.busy).count();
        // A view takes several calls, and a measurement may be charged between two of them.
        let one = [inside, neighbour].iter().all(|seen| seen.used == seen.sum());
        (all && one && seen.each_ref().map(busy) == [1, 1, 2]).then_some(seen)
    });
    for (seen, gib, count) in [(&inside, 6, 2), (&neighbour, 8, 1)] {
        assert_eq!((seen.total, seen.processes.len()), (gib * 1024 * MIB, count), "{seen:?}");
        assert_eq!((seen.used, seen.used + seen.free), (seen.sum(), seen.total), "{seen:?}");
    }
    assert_eq!(host.total, GPU);
    let pids = |seen: &Seen| -> BTreeSet<u64> {
        seen.processes.iter().map(|process| process.pid).collect()
    };
    assert!(pids(&host).is_disjoint(&pids(&inside)) && pids(&host).is_disjoint(&pids(&neighbour)));

    let texts = [notebook.run(&tools.pynvml), notebook.run(&tools.wrapper)];
    let [python, rust] = texts.each_ref().map(|text| Seen::read(text).without_utilisation());
    assert_eq!(
        (&python, &rust),
        (&inside.clone().without_utilisation(), &inside.without_utilisation())
    );
    check_page("nvidia-ml-py inside", &texts[0]);
    check_page("nvml-wrapper inside", &texts[1]);
    let texts = [outside(&fixture, &tools.pynvml), outside(&fixture, &tools.wrapper)];
    // One version of the call counts what the driver has reserved as used, the other does not.
    let [python, rust] =
        texts.each_ref().map(|text| Seen { used: 0, ..Seen::read(text).without_utilisation() });
    let host = Seen { used: 0, ..host.without_utilisation() };
    assert_eq!((&python, &rust), (&host, &host));
    check_page("nvidia-ml-py outside", &texts[0]);
    check_page("nvml-wrapper outside", &texts[1]);
    check_page("nvidia-ml-py in the other", &server.run(&tools.pynvml));

    let (inside, outside_of) = (notebook.run(&tools.nvitop), outside(&fixture, &tools.nvitop));
    let names = |text: &str| ["who 1G", "who 2G", "who 5G"].map(|name| text.contains(name));
    assert_eq!(names(&inside), [true, true, false], "{inside}");
    assert_eq!(names(&outside_of), [true; 3], "{outside_of}");
    assert!(inside.contains("6144MiB") || inside.contains("6.00GiB"), "{inside}");
    check_page("nvitop inside", &inside);
    check_page("nvitop outside", &outside_of);
    let root = fixture.root();
    let mut smi = fixture.cgpu(&["smi", "--root", &root.to_string_lossy()]);
    smi.env("COLUMNS", "100");
    check_page("cgpu smi", &Outcome::of(smi).silent().stdout);
}
