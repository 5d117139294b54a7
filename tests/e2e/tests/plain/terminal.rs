//! `cgpu top` and `cgpu smi` in a real terminal (tmux), and their screenshots.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, Terminal, Worker};

struct Setup {
    terminal: Terminal,
    monitor: Monitor,
    holders: Vec<Child>,
    fixture: Fixture,
}

impl Setup {
    fn set(test: &str, size: (u16, u16), variables: &[(&str, &str)]) -> Option<Self> {
        let fixture = Fixture::new("A10:23028");
        let root = fixture.root();
        let mut all = vec![("ROOT", root.to_str().expect("a plain path"))];
        all.extend(variables);
        let terminal = Terminal::open(&fixture, test, size, &all)?;
        let monitor = Monitor::start(&fixture);
        let containers = [fixture.limited("alpha", 8192), fixture.limited("bravo", 4096)];
        let holders = containers.iter().map(|container| hold(&fixture, container, "1G")).collect();
        containers.iter().for_each(|container| drop(fixture.accounting(container)));
        Some(Self { terminal, monitor, holders, fixture })
    }

    fn top(&self) -> String {
        self.terminal.line("\"$CGPU\" top --interval 0.2 --root \"$ROOT\"; echo \"code $?\"");
        self.terminal.shows("q quit")
    }

    fn node(&self, path: &str) -> String {
        let root = self.fixture.root();
        let outcome =
            Outcome::of(self.fixture.cgpu(&["get", path, "--root", &root.to_string_lossy()]));
        outcome.silent().stdout.trim_end().to_owned()
    }

    fn end(self) {
        self.holders.into_iter().for_each(|holder| drop(holder.finish().silent()));
    }
}

fn hold(fixture: &Fixture, container: &Container, amount: &str) -> Child {
    let mut command = fixture.program_in(container, "hold");
    command.arg(amount);
    let mut holder = Child::start(command);
    holder.line();
    holder
}

#[test]
fn top_shows_sorts_filters_and_changes_what_is_confirmed() {
    let Some(setup) = Setup::set("top_changes", (80, 24), &[]) else { return };
    let terminal = &setup.terminal;
    setup.top();
    let seen = terminal.shows("bravo");
    assert!(seen.contains("A alpha") && seen.contains("GPU 0"), "{seen}");

    terminal.types("/BRA");
    terminal.wait_for("a filter", |seen| !seen.contains("A alpha"));
    terminal.press("Escape");
    terminal.shows("A alpha");
    terminal.types("r");
    terminal.wait_for("the other way round", |seen| seen.find("B bravo") < seen.find("A alpha"));
    terminal.types("r");

    terminal.types("p2");
    terminal.shows("policy of GPU 0");
    terminal.press("Enter");
    terminal.shows("policy 2 (weighted) instead of preemptive");
    terminal.types("n");
    terminal.shows("nothing was changed");
    assert_eq!(setup.node("0/policy"), "1");
    terminal.types("p2");
    terminal.press("Enter");
    terminal.types("y");
    terminal.shows("policy 2 (weighted)  ");
    setup.fixture.eventually("the policy", || (setup.node("0/policy") == "2").then_some(()));

    terminal.press("Down");
    terminal.types("w3");
    terminal.press("Enter");
    terminal.types("y");
    terminal.shows("done: bravo on GPU 0: weight 3");
    assert_eq!(
        (setup.node("0/bravo/weight"), setup.node("0/alpha/weight")),
        ("3".into(), "1".into())
    );
    terminal.types("w25");
    terminal.press("Enter");
    terminal.types("y");
    terminal.shows("EBUSY");

    terminal.resize(120, 40);
    terminal.shows("COMPUTE");
    terminal.resize(60, 12);
    terminal.wait_for("less", |seen| !seen.contains("COMPUTE") && seen.contains("alpha"));
    terminal.types("q");
    terminal.shows("code 0");
    setup.end();
}

#[test]
fn terminal_is_restored_however_top_ends() {
    let Some(setup) = Setup::set("every_way_out", (80, 24), &[]) else { return };
    let terminal = &setup.terminal;
    let file = |name: &str| fs::read_to_string(setup.fixture.path(name)).unwrap_or_default();
    let ways = [
        ("q", "", "code 0"),
        ("C-c", "", "code 0"),
        ("Escape", "", "code 0"),
        ("", "kill -TERM", "code 143"),
        ("", "kill -HUP", "code 129"),
        ("panic", "", "code 101"),
        ("gone", "", "code 1"),
    ];
    let mut monitor = Some(setup.monitor);
    for (number, (key, signal, code)) in ways.into_iter().enumerate() {
        // Different text each time: the previous round's may still be on the screen.
        let (prompt, end) = (format!("at-the-prompt-{number}"), format!("the-end-{number}"));
        terminal.line(&format!("clear; echo before '{key}{signal}'"));
        terminal.line(&format!(
            "stty -g >before; printf '' >pid; printf 'at-the-%s-{number}\\n' prompt"
        ));
        terminal.shows(&prompt);
        let fault = if key == "panic" { "--panic" } else { "" };
        terminal.line(&format!(
            "sh -c 'echo $$ >pid; exec \"$CGPU\" top --interval 0.2 {fault} --root \"$ROOT\"'; echo \"code $?\"; stty -g >after; printf 'the-%s-{number}\\n' end"
        ));
        if key != "panic" {
            terminal.shows("q quit");
            assert_eq!(terminal.variable("alternate_on"), "1");
        }
        match key {
            "" => {
                let mut kill = Command::new("sh");
                kill.args(["-c", &format!("{signal} {}", file("pid").trim())]);
                Outcome::of(kill).silent();
            }
            "panic" => {}
            "gone" => {
                monitor.take().expect("one monitor").process.kill();
            }
            key => terminal.press(key),
        }
        let seen = terminal.shows(&end);
        assert!(seen.contains(code), "{key}{signal}: {seen}");
        assert!(seen.contains(&prompt), "{key}{signal}: what was there is there again: {seen}");
        assert!(file("before").contains(':'), "what stty says");
        assert_eq!(file("before"), file("after"), "{key}{signal}: stty");
        assert_eq!(
            (terminal.variable("alternate_on"), terminal.variable("cursor_flag")),
            ("0".into(), "1".into())
        );
        match key {
            "panic" => assert!(seen.contains("requested by --panic"), "{seen}"),
            "gone" => assert!(seen.contains("no monitor at"), "{seen}"),
            _ => {}
        }
    }
    setup.holders.into_iter().for_each(|holder| drop(holder.finish().silent()));
}

#[test]
fn top_can_be_suspended_and_resumed() {
    let Some(setup) = Setup::set("suspended", (80, 24), &[]) else { return };
    let terminal = &setup.terminal;
    terminal.line("stty -g >before; printf 'at-the-%s\\n' prompt");
    terminal.shows("at-the-prompt");
    let top = "\"$CGPU\" top --interval 0.2 --root \"$ROOT\"";
    // By itself, and from a script, which must stop as well or the shell would wait for it.
    for (number, command) in
        [top.to_owned(), format!("sh -c '{top}; echo \"code $?\"'")].iter().enumerate()
    {
        terminal.line(&format!("clear; printf 'at-prompt-%s\\n' {number}"));
        terminal.shows(&format!("at-prompt-{number}"));
        terminal.line(command);
        terminal.shows("q quit");
        terminal.press("C-z");
        // The shell's message that it has the terminal.
        terminal.shows("Stopped");
        assert_eq!(terminal.variable("alternate_on"), "0");
        terminal.line("fg");
        terminal.shows("q quit");
        terminal.types("q");
        terminal.shows(&format!("at-prompt-{number}"));
        terminal.line("printf 'it-%s\\n' ended");
        terminal.shows("it-ended");
        assert_eq!(terminal.variable("alternate_on"), "0");
    }
    setup.end();
}

#[test]
fn top_needs_no_colours_and_no_unicode() {
    // 39 and 49 are the terminal's default colours.
    let coloured = |text: &str| {
        let sequences =
            text.split('\x1b').skip(1).filter_map(|rest| rest.strip_prefix('[')?.split_once('m'));
        sequences.flat_map(|(codes, _)| codes.split(';')).any(|code| {
            code.parse().is_ok_and(|code: u32| matches!(code, 30..=38 | 40..=48 | 90..=107))
        })
    };
    for (variable, colours) in [(("NO_COLOR", ""), true), (("NO_COLOR", "1"), false)] {
        let Some(setup) = Setup::set("colours", (80, 24), &[variable]) else { return };
        setup.top();
        setup.terminal.shows("A alpha");
        assert_eq!(coloured(&setup.terminal.coloured_screen()), colours, "{variable:?}");
        setup.terminal.types("q");
        setup.terminal.shows("code 0");
        setup.end();
    }
    let Some(setup) = Setup::set("ascii", (80, 24), &[("LC_ALL", "C")]) else { return };
    let seen = setup.top();
    assert!(seen.is_ascii(), "{seen}");
    setup.terminal.types("q");
    setup.terminal.shows("code 0");
    setup.terminal.line("TERM=dumb \"$CGPU\" top --root \"$ROOT\"; echo \"code $?\"");
    let seen = setup.terminal.shows("code 1");
    assert!(seen.contains("found TERM=\"dumb\""), "{seen}");
    setup.end();
}

#[test]
fn smi_has_colours_on_a_terminal_only() {
    for (variable, colours) in [(("NO_COLOR", ""), true), (("NO_COLOR", "1"), false)] {
        let Some(setup) = Setup::set("smi_colours", (80, 24), &[variable]) else { return };
        setup.terminal.line("clear; \"$CGPU\" smi --root \"$ROOT\"; echo \"code $?\"");
        setup.terminal.shows("code 0");
        let screen = setup.terminal.coloured_screen();
        assert_eq!(screen.contains("38;5;"), colours, "{variable:?}: {screen}");
        setup
            .terminal
            .line("clear; \"$CGPU\" smi --root \"$ROOT\" | od -c >piped; echo \"done $?\"");
        setup.terminal.shows("done 0");
        let piped = fs::read_to_string(setup.fixture.path("piped")).expect("the output");
        assert!(piped.len() > 500 && !piped.contains("033"), "{piped}");
        setup.end();
    }
}

#[test]
fn top_without_a_terminal_or_monitor_reports_it() {
    let fixture = Fixture::new("A10:23028");
    let root = fixture.root();
    let outcome = Outcome::of(fixture.cgpu(&["top", "--root", &root.to_string_lossy()])).exits(1);
    assert!(outcome.stderr.contains("cgpu smi --watch"), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    let Some(terminal) =
        Terminal::open(&fixture, "no_monitor", (80, 24), &[("ROOT", &root.to_string_lossy())])
    else {
        return;
    };
    terminal.line("\"$CGPU\" top --root \"$ROOT\"; echo \"code $?\"");
    let seen = terminal.shows("code 1");
    assert!(seen.contains("no monitor at") && terminal.variable("alternate_on") == "0", "{seen}");
}

/// Shows two containers that saturate a GPU in turns. With CGPU_PICTURES (`cargo xtask pictures`)
/// the screens are saved to that folder.
#[test]
fn pictures() {
    let fixture = Fixture::new("A10:23028");
    let root = fixture.root();
    let variables = [("ROOT", root.to_str().expect("a plain path"))];
    let Some(wide) = Terminal::open(&fixture, "pictures", (120, 20), &variables) else { return };
    let _monitor = Monitor::start(&fixture);
    let containers = [
        fixture.limited("3f2a9c41d07b", 8192).with_weight(1),
        fixture.limited("b81e5507aa90", 12_288).with_weight(2),
    ];
    for (container, limits) in
        containers.iter().zip(["name notebook\nweight 1\n", "name trainer\nweight 2\n"])
    {
        fs::write(container.file("limits"), format!("version 1\n{limits}"))
            .expect("limits can be written");
    }
    let holders =
        [("1G", 0), ("2500M", 1)].map(|(amount, at)| hold(&fixture, &containers[at], amount));
    let mut workers = containers.each_ref().map(|container| Worker::start(&fixture, container));
    workers.iter_mut().for_each(|worker| {
        worker.begin(if std::env::var_os("CGPU_PICTURES").is_some() { 60.0 } else { 20.0 })
    });
    wide.line("clear; \"$CGPU\" top --interval 0.3 --root \"$ROOT\"");
    let strip = |seen: &str| {
        seen.lines().find(|line| line.starts_with(" turns")).unwrap_or_default().to_owned()
    };
    wide.wait_for("turns of both", |seen| strip(seen).contains('A') && strip(seen).contains('B'));
    let settled = |seen: &str| {
        seen.lines().filter(|line| line.contains("██") || line.contains("▃▃▃▃▃▃▃▃")).count() >= 2
    };
    if std::env::var_os("CGPU_PICTURES").is_some() {
        wide.wait_for("some history", settled);
        std::thread::sleep(std::time::Duration::from_secs(6));
    }
    keep("top", &wide.coloured_screen());
    wide.types("q");
    wide.shows("$");
    wide.line("clear; \"$CGPU\" smi --root \"$ROOT\"");
    let seen = wide.wait_for("both", |seen| {
        ["3f2a9c41d07b", "b81e5507aa90"].iter().all(|id| seen.contains(id))
    });
    for what in ["weight 1", "weight 2", "implicit", "policy 2 (weighted)", "8192"] {
        assert!(seen.contains(what), "{what}: {seen}");
    }
    keep("smi", &wide.coloured_screen());
    assert!(fixture.used(&containers[0], 0) > 1024 * MIB);
    holders.into_iter().for_each(|holder| drop(holder.finish().silent()));
}

fn keep(name: &str, screen: &str) {
    let Some(folder) = std::env::var_os("CGPU_PICTURES").map(PathBuf::from) else { return };
    let svg = anstyle_svg::Term::new().render_svg(screen.trim_end_matches(['$', '\n', ' ']));
    fs::write(folder.join(format!("{name}.svg")), svg).expect("a picture");
}
